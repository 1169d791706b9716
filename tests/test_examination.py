"""With `--check`, a conversation is stored only if a model can still tell facts from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import Log, Talk, recorded
from facts_said import DECISION, FACTS, GOAL, NUMBER, PATH, RULE, VALUES
from scripted import Plugin, Reply, registered

import llm_compact
from llm_compact.conversation import text_of
from llm_compact.questions import GAP
from llm_compact.tokens import count_text

Run = Callable[..., Result]

TALK = "It is calm at sea and the harbour says that nothing is to be expected of it. " * 12
SUMMARY = "## Goal\nThe user moves something somewhere, and it goes well."


@dataclass
class Reader(llm.Model):
    """Answers from the conversation that it is shown: what fits the gap there, else a dash."""

    model_id: str = "reader"
    knows: dict[str, str] = field(default_factory=dict)
    "What to look for, in whatever words, by the sentence with a gap."
    replies: list[Reply] = field(default_factory=list)
    "Instead of that, as long as there are any."
    sent: list[llm.Prompt] = field(default_factory=list)
    can_stream = True

    def __hash__(self) -> int:
        return id(self)

    def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
        self.sent.append(prompt)
        reply = self.replies.pop(0) if self.replies else Reply(self._answer(), usage=(200, 20))
        yield reply.text
        reply.finish(response)

    def shown(self) -> tuple[str, list[str]]:
        """The conversation and the sentences of the last prompt."""
        boundary = self.sent[-1].system.split("begin with ")[1].split()[0]
        conversation, sentences = re.findall(
            rf"{boundary} begin\n(.*?)\n{boundary} end", self.sent[-1].prompt, re.DOTALL
        )
        found = re.split(rf"^{boundary} sentence \d+\n", sentences, flags=re.MULTILINE)
        return conversation, [sentence.strip() for sentence in found[1:]]

    def _answer(self) -> str:
        conversation, sentences = self.shown()
        lines = []
        for number, sentence in enumerate(sentences, 1):
            before, after = map(re.escape, sentence.split(GAP))
            found = re.search(f"{before}(.{{1,80}}?){after}", conversation)
            known = self.knows.get(sentence, "\0")
            answer = found[1] if found else known if known in conversation else "-"
            lines.append(f"{number}: {answer}")
        return "\n".join(lines)


@pytest.fixture
def reader(models: Plugin) -> Iterator[Reader]:
    reader = Reader()

    class WithReader:
        __name__ = "with_reader"

        @llm.hookimpl
        def register_models(self, register: Any) -> None:
            register(reader)

    with registered(WithReader()):
        yield reader


@pytest.fixture
def moving(talk: Talk) -> str:
    """A conversation that says each fact once, in an exchange of its own, and then much else."""
    return talk(
        [
            (GOAL, TALK),
            (RULE, TALK),
            ("Which database do we take?", DECISION + " " + TALK),
            ("Where is it?", PATH + " " + TALK),
            ("How often?", NUMBER + " " + TALK),
            ("What else?", TALK),
            ("And now?", TALK),
        ]
    )


def gapped(fact: str) -> str:
    (value,) = [value for value in VALUES if value in fact]
    return fact.replace(value, GAP)


def test_a_conversation_that_tells_all_facts_is_stored_as_it_is(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    models.summer.replies = [f"## Goal\n{GOAL}\n\n## Findings\n- {DECISION}\n- {PATH}\n- {NUMBER}"]

    result = run("compact", "-c", "-m", "summer", "--check", "reader")

    assert result.exit_code == 0
    asked = reader.shown()[1]
    assert set(map(gapped, FACTS)) <= set(asked) and 5 <= len(asked) <= 8
    assert f"Checked with reader: {len(asked)} of {len(asked)} answered from the new" in (
        result.stderr
    )
    (row,) = log.db["compactions"].rows
    assert (row["check_model"], row["check_repairs"]) == ("reader", "")
    assert row["check_asked"] == row["check_passed"] == len(asked)
    assert (row["calls"], row["input_tokens"], row["output_tokens"]) == (2, 320, 50)
    assert len(reader.sent) == 1


def test_the_reader_is_shown_the_new_conversation_and_nothing_else(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    models.summer.replies = [SUMMARY]

    run("compact", "-c", "-m", "summer", "--check", "reader")

    conversation, _ = reader.shown()
    for message in log.messages():
        assert text_of(message) in conversation
    assert "How often?" not in conversation.replace(text_of(log.messages()[1]), "")


def test_what_a_model_tells_in_other_words_is_right(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    reader.knows = {gapped(fact): value for fact, value in zip(FACTS, VALUES, strict=True)}
    models.summer.replies = [f"## Findings\n- {'; '.join(VALUES)}; sea, harbour"]

    result = run("compact", "-c", "-m", "summer", "--check", "reader", "--json")

    assert json.loads(result.stdout)["check_repairs"] == ""


def test_a_fact_that_is_missing_is_added_word_for_word(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    models.summer.replies = [SUMMARY]

    result = run("compact", "-c", "-m", "summer", "--check", "reader", "--pin", "Never on Friday")

    assert result.exit_code == 0
    summary = text_of(log.messages()[1])
    for fact in FACTS:
        assert f'"{fact}"' in summary
    assert summary.endswith("- Never on Friday")
    assert result.stdout == f"{summary}\n"
    (row,) = log.db["compactions"].rows
    assert row["check_repairs"] == "facts"
    assert row["check_passed"] == row["check_asked"]
    assert row["tokens_after"] < row["tokens_before"]
    assert "(repaired: facts)" in result.stderr
    assert len(reader.sent) == 2
    assert len(reader.shown()[1]) < row["check_asked"], "what was right is not asked again"


def test_where_the_summary_has_no_room_the_tail_becomes_longer(
    talk: Talk, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    talk(
        [
            ("Good morning?", TALK),
            ("What is new?", TALK),
            ("Tell me everything?", "\n".join([TALK, DECISION, PATH, NUMBER])),
            ("What else?", TALK),
        ]
    )
    models.summer.replies = [SUMMARY]
    room = str(count_text(recorded(SUMMARY, 6)) + 5)

    result = run(
        *("compact", "-c", "-m", "summer", "--check", "reader"),
        *("--keep", "1x", "--max-summary", room),
    )

    assert result.exit_code == 0
    told = [text_of(message) for message in log.messages()]
    assert told[1:3] == [recorded(SUMMARY, 4), "Tell me everything?"]
    (row,) = log.db["compactions"].rows
    assert row["check_repairs"] == "tail"
    assert (row["exchanges_summarized"], row["exchanges_kept"]) == (2, 2)
    assert (row["messages_summarized"], row["messages_kept"]) == (4, 4)
    models.summer.replies = ["## Goal\nAnother."]
    again = llm_compact.compact(log.newest()["id"], model="summer", keep="1x", again=True)
    assert again.summary.startswith("Record of 6 earlier messages")


def test_a_new_summary_is_made_where_nothing_else_helps(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    better = "## Findings\n" + "\n".join(f"- {fact}" for fact in FACTS)
    room = count_text(recorded(better, 10)) + 25
    models.summer.replies = ["## Goal\n" + "sea " * (room - 60), better]

    result = run(
        *("compact", "-c", "the gauges", "-m", "summer", "--check", "reader"),
        *("--max-summary", str(room)),
    )

    assert result.exit_code == 0
    assert len(models.summer.sent) == 2
    assert "Keep exactly: " in models.summer.texts_sent()
    assert VALUES[3] in models.summer.texts_sent().split("Keep exactly: ")[1]
    (row,) = log.db["compactions"].rows
    assert row["check_repairs"].split(",")[-1] == "summary"
    assert row["instructions"] == "the gauges"
    assert row["calls"] == 2 + len(reader.sent)
    assert row["input_tokens"] == 2 * 120 + 200 * len(reader.sent)
    assert set(VALUES) <= {v for v in VALUES if v in text_of(log.messages()[1])}


def test_a_failed_check_stores_nothing_and_names_a_fact(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    before = log.rows()
    models.summer.replies = [SUMMARY] * 2
    room = str(count_text(recorded(SUMMARY, 10)) + 30)

    result = run("compact", "-c", "-m", "summer", "--check", "reader", "--max-summary", room)

    assert result.exit_code == 1
    assert re.search(
        r"The check with reader failed: \d of \d facts are not in the new", result.stderr
    )
    (value, sentence) = re.findall(r"such as '(.+?)' in '(.+?)'\.", result.stderr)[0]
    assert sentence.replace(GAP, value) in FACTS
    assert "Nothing was written" in result.stderr
    assert log.rows() == before
    assert len(models.summer.sent) == 2


def test_what_stands_there_and_is_overlooked_does_not_count_against_the_summary(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    models.summer.replies = ["## Findings\n" + "\n".join(f"- {fact}" for fact in FACTS)]
    reader.replies = [Reply("1: service"), Reply("nothing")]

    result = run("compact", "-c", "-m", "summer", "--check", "reader")

    assert result.exit_code == 0
    (row,) = log.db["compactions"].rows
    assert row["check_passed"] == 1 < row["check_asked"]
    assert "not found though word for word in it" in result.stderr
    assert len(models.summer.sent) == 1


@pytest.mark.parametrize(
    "replies, told",
    [
        ([Reply(""), Reply("")], "reader found none of"),
        ([Reply("I like the sea."), Reply("I like the sea.")], "reader found none of"),
        ([Reply("1: 7\n2: foo"), Reply("{}")], "reader found none of"),
        ([Reply(raises=RuntimeError("no credit"))], "reader failed: no credit"),
        ([Reply(raises=ValueError("maximum context length is 20 tokens"))], "does not fit the"),
    ],
)
def test_a_model_that_can_not_read_makes_no_check(
    replies: list[Reply],
    told: str,
    moving: str,
    models: Plugin,
    reader: Reader,
    log: Log,
    run: Run,
) -> None:
    before = log.rows()
    models.summer.replies = [SUMMARY] * 2
    reader.replies = replies

    result = run("compact", "-c", "-m", "summer", "--check", "reader")

    assert result.exit_code == 1
    assert "The check was not made: " in result.stderr and told in result.stderr
    assert log.rows() == before
    assert len(models.summer.sent) == 1


def test_a_new_conversation_that_exceeds_the_readers_window_is_refused_before_it_is_called(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    run("compact", "settings", "set", "window.reader", "300")
    models.summer.replies = [SUMMARY]

    result = run("compact", "-c", "-m", "summer", "--check", "reader")

    assert result.exit_code == 1
    assert "does not fit the context window of 300 tokens of reader" in result.stderr
    assert not reader.sent and not models.summer.sent
    assert not log.db["compactions"].exists()


@pytest.mark.parametrize(
    "args, told",
    [
        (["-m", "extractive", "--check"], "extractive can't answer questions"),
        (["-m", "summer", "--check", "extractive"], "extractive can't answer questions"),
        (["-m", "summer", "--check", "nobody"], "Unknown model: nobody"),
        (["-m", "extractive", "--check", "--dry-run"], "extractive can't answer questions"),
        (["-m", "summer", "--check", ""], "--check is empty"),
    ],
)
def test_who_can_not_answer_is_told_before_anything_is_called(
    args: list[str], told: str, moving: str, models: Plugin, log: Log, run: Run
) -> None:
    before = log.rows()

    result = run("compact", "-c", *args)

    assert result.exit_code in (1, 2) and told in result.stderr
    assert not models.summer.sent
    assert log.rows() == before


def test_without_a_name_the_summarizer_answers_with_its_key_and_another_model_gets_no_key(
    moving: str, models: Plugin, log: Log, user_path: Path
) -> None:
    (user_path / "keys.json").write_text('{"scripted": "stored"}', "utf-8")
    facts = "## Findings\n" + "\n".join(f"- {fact}" for fact in FACTS)
    models.summer.replies = [facts, "1: service"]
    llm_compact.compact(moving, model="keyed", key="k1", check=True)

    models.summer.replies = [facts, "1: service"]
    llm_compact.compact(moving, model="summer", key="k1", check="keyed", again=True)

    keys = models.summer.keys
    assert set(keys[: keys.index(None)]) == {"k1"}
    assert set(keys[keys.index(None) :]) == {None, "stored"}
    assert [row["check_model"] for row in log.db["compactions"].rows] == ["keyed", "keyed"]


def test_extractive_summaries_can_be_checked_by_a_model(
    moving: str, reader: Reader, log: Log, run: Run
) -> None:
    result = run("compact", "-c", "-m", "extractive", "--check", "reader")

    assert result.exit_code == 0
    (row,) = log.db["compactions"].rows
    assert row["check_passed"] == row["check_asked"] > 0
    assert row["calls"] == len(reader.sent)


def test_a_dry_run_counts_the_call_and_makes_none(
    moving: str, models: Plugin, reader: Reader, run: Run
) -> None:
    plain = json.loads(run("compact", "-c", "-m", "summer", "--dry-run", "--json").stdout)

    result = run("compact", "-c", "-m", "summer", "--check", "--dry-run", "--json")

    assert json.loads(result.stdout)["calls"] == plain["calls"] + 1
    assert not models.summer.sent and not reader.sent


def test_the_result_is_kept_and_shown(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    models.summer.replies = [SUMMARY]
    made = json.loads(run("compact", "-c", "-m", "summer", "--check", "reader", "--json").stdout)

    shown = json.loads(run("compact", "show", "--json").stdout)

    for key in ("check_model", "check_asked", "check_passed", "check_repairs"):
        assert made[key] == shown[key] is not None
    asked = made["check_asked"]
    told = f"reader: {asked} of {asked} answered from the new conversation (repaired: facts)"
    assert re.search(rf"^checked: +{re.escape(told)}$", run("compact", "show").stdout, re.M)


def test_without_a_check_nothing_is_said_of_one(
    moving: str, models: Plugin, log: Log, run: Run
) -> None:
    result = run("compact", "-c", "-m", "extractive")

    (row,) = log.db["compactions"].rows
    assert row["check_model"] is row["check_asked"] is row["check_repairs"] is None
    assert "hecked" not in result.stderr + run("compact", "show").stdout


def test_a_secret_is_neither_asked_for_nor_shown_to_another_provider(
    talk: Talk, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    secret = "hunter2-x91-pq7"
    talk(
        [
            (f"The password is {secret} on db/main.sql, and {secret} it stays.", TALK),
            (f"Use {secret} for the gauge service tomorrow.", TALK),
            (PATH, TALK),
            (f"My password: {secret}, remember it in the tail.", TALK),
            ("What else?", TALK),
        ]
    )
    models.summer.replies = [SUMMARY]

    result = run("compact", "-c", "-m", "summer", "--check", "reader")

    assert result.exit_code == 0
    assert all(secret not in prompt.prompt + prompt.system for prompt in reader.sent)
    assert secret not in text_of(log.messages()[1])


def test_a_log_with_older_compactions_gets_the_columns(
    moving: str, models: Plugin, reader: Reader, log: Log, run: Run
) -> None:
    llm_compact.compact(moving, model="extractive")
    db = log.db
    for name in ("check_model", "check_asked", "check_passed", "check_repairs"):
        db.execute(f"alter table compactions drop column {name}")
    db.execute("delete from _sqlite_migrations where name = 'add_check_to_compactions'")
    db.conn.commit()
    assert run("compact", "show").exit_code == 0
    models.summer.replies = [SUMMARY]

    done = llm_compact.compact(moving, model="summer", check="reader", again=True)

    assert [row["check_model"] for row in log.db["compactions"].rows] == [None, "reader"]
    assert done.check_passed == done.check_asked
