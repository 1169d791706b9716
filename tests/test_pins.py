"""What is pinned stands word for word in every summary that comes after."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlite_utils
from click.testing import Result
from conftest import LONG, Log, Talk
from hypothesis import given
from hypothesis import strategies as st
from old_log import OldLog
from scripted import Plugin, Reply

import llm_compact
from llm_compact.conversation import text_of
from llm_compact.errors import ConversationError
from llm_compact.language import all_words, words
from llm_compact.pins import clean_pins, with_pins, without_pins
from llm_compact.summary import Head, sections_of

Run = Callable[..., Result]

PIN = "The staging database is tide-stage-2, on port 5433."
CODE = "# Release steps\n\n```sh\nmake release\n```\n## Never on a Friday"
HEADING = f"## {words('en')['pins']}"


def pin_ids(log: Log) -> list[str]:
    return [row["id"] for row in log.db["compact_pins"].rows]


@pytest.mark.parametrize("model", ["extractive", "summer"])
@pytest.mark.parametrize("text", [PIN, CODE])
def test_a_pin_is_in_the_summary_whoever_writes_it(
    model: str, text: str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = ["## Goal\nKnow the tides."]

    assert run("compact", "pin", text).exit_code == 0
    result = run("compact", "-c", "-m", model)

    summary = text_of(log.messages()[2])
    assert text in summary
    assert result.stdout == f"{summary}\n"
    headings = [heading for heading, _ in sections_of(summary)]
    assert headings[-1] == words("en")["pins"]
    assert "Release steps" not in headings and "Never on a Friday" not in headings


def test_a_pin_stays_through_the_generations_and_stands_there_once(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "-c", "--pin", PIN, "-m", "extractive")
    models.chatty.replies = [LONG.format(place="Ribe", n=1)] * 3

    for number in range(3):
        run("-c", f"And now, {number}?")
        models.summer.replies = ["## Goal\nKnow the tides."]
        assert run("compact", "-c", "-m", "summer", "--keep", "1x").exit_code == 0
        assert PIN not in models.summer.texts_sent()

    assert text_of(log.messages()[2]).count(PIN) == 1
    assert json.loads(run("compact", "list", "--json").stdout)[0]["generation"] == 4
    assert len(pin_ids(log)) == 1


def test_a_pin_of_a_later_generation_does_not_go_back(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    new = llm_compact.compact(model="extractive").id

    run("compact", "pin", "-c", PIN)

    assert PIN in run("compact", "pins").stdout
    assert PIN in run("compact", "pins", "--cid", new).stdout
    assert run("compact", "pins", "--cid", long_talk).stdout == ""
    assert PIN not in llm_compact.compact(long_talk, model="extractive", again=True).summary
    assert PIN in llm_compact.compact(new, model="extractive", keep="1x").summary


def test_a_response_id_pins_what_the_user_said_there_or_the_answer(
    talk: Talk, log: Log, run: Run
) -> None:
    look_up = Reply(calls=(("c1", "lookup", {"key": "Ribe"}),))
    id = talk(
        [
            ("Look the level up.", [look_up, "It is 1.5 m."]),
            *[(f"When, {n}?", LONG.format(place="Ribe", n=n)) for n in range(4)],
        ]
    )
    turns = [row["id"] for row in log.db["turns"].rows_where(order_by="id")]

    assert run("compact", "pin", turns[1]).exit_code == 0
    assert run("compact", "pin", "--response", turns[1]).exit_code == 0

    asked, answered = log.db["compact_pins"].rows
    assert (asked["text"], answered["text"]) == ("Look the level up.", "It is 1.5 m.")
    assert asked["conversation_id"] == id
    for pin, role in ((asked, "user"), (answered, "assistant")):
        assert log.db["messages"].get(pin["message_hash"])["role"] == role
    refused = run("compact", "pin", "--response", turns[0])
    assert refused.exit_code == 1 and "no text of its own" in refused.stderr


def test_a_document_in_a_prompt_is_pinned_by_reference(talk: Talk, log: Log, run: Run) -> None:
    talk([("Sum it up.", "Done.")], fragments=["A novel about tides. " * 100])
    (turn,) = log.db["turns"].rows

    run("compact", "pin", turn["id"])

    (pin,) = log.db["compact_pins"].rows
    assert "Sum it up." in pin["text"] and len(pin["text"]) < 300


@pytest.mark.parametrize(
    "args, told",
    [
        (["01jm8ec7aqh4gmn0xvxc3vqrqd"], "No response found with id=01jm8ec7aqh4gmn0xvxc3vqrqd"),
        (["never", "touch", "main"], "Put each text in quotes"),
        (["  "], "Nothing to pin"),
        (["--cid", "nothing", PIN], "No conversation found with id=nothing"),
        (["--response", PIN], "is no response id"),
    ],
)
def test_what_can_not_be_pinned_is_refused_and_nothing_is_written(
    args: list[str], told: str, long_talk: str, log: Log, run: Run
) -> None:
    before = log.rows()

    result = run("compact", "pin", *args)

    assert result.exit_code == 1 and told in result.stderr
    assert log.rows() == before


def test_the_request_of_a_compaction_can_not_be_pinned(long_talk: str, run: Run) -> None:
    turn = llm_compact.compact(model="extractive").turn_id

    assert "no text of its own" in run("compact", "pin", turn).stderr


def test_unpinned_is_gone_from_the_next_summary(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "pin", PIN, "The release is on Friday.")
    run("compact", "-c", "-m", "extractive")
    pin = pin_ids(log)[0]

    assert run("compact", "unpin", pin, "nothing").exit_code == 1
    assert len(pin_ids(log)) == 2
    assert run("compact", "unpin", pin).exit_code == 0

    summary = llm_compact.compact(model="extractive", keep="1x").summary
    assert PIN not in summary and "- The release is on Friday." in summary
    assert [row["text"] for row in json.loads(run("compact", "pins", "--json").stdout)] == [
        "The release is on Friday."
    ]


def test_pins_alone_that_are_too_long_are_refused(long_talk: str, log: Log, run: Run) -> None:
    run("compact", "pin", PIN * 20)
    before = log.rows()

    result = run("compact", "-c", "-m", "extractive", "--max-summary", "60")

    assert result.exit_code == 1
    assert "The pins alone take" in result.stderr and "llm compact unpin" in result.stderr
    assert log.rows() == before


def test_max_summary_is_kept_with_the_pins_included(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "pin", PIN)

    assert llm_compact.compact(model="extractive", max_summary="80").summary_tokens <= 80
    models.summer.replies = ["word " * 75] * 2
    result = run("compact", "-c", "-m", "summer", "--keep", "1x", "--max-summary", "80")
    assert result.exit_code == 1 and "are allowed" in result.stderr


def test_a_failed_compaction_pins_nothing(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [""]
    before = log.rows()

    assert run("compact", "-c", "-m", "summer", "--pin", PIN).exit_code == 1
    assert run("compact", "-c", "-m", "summer", "--pin", PIN, "--dry-run").exit_code == 0

    assert log.rows() == before


def test_the_same_text_is_pinned_once(long_talk: str, log: Log, run: Run) -> None:
    run("compact", "pin", PIN)

    summary = llm_compact.compact(model="extractive", pins=[PIN, f"{PIN}\n"]).summary

    assert summary.count(PIN) == 1
    assert len(pin_ids(log)) == 1


def test_to_pin_what_is_pinned_already_says_so_and_stores_nothing(
    long_talk: str, log: Log, run: Run
) -> None:
    first = next(log.db["turns"].rows)["id"]
    twice = run("compact", "pin", PIN, PIN)
    (id,) = pin_ids(log)
    later = llm_compact.compact(model="extractive").id

    again = run("compact", "pin", f"{PIN}\n", "--cid", later)
    message = run("compact", "pin", first, first, "--cid", long_talk)

    assert (twice.exit_code, again.exit_code, message.exit_code) == (0, 0, 0)
    assert twice.stderr == f"Pinned as {id} in conversation {long_talk}\n"
    # It holds in each later generation.
    assert again.stderr == f"Already pinned as {id} in conversation {long_talk}\n"
    assert len(message.stderr.splitlines()) == 1
    assert len(pin_ids(log)) == 2


def test_to_unpin_the_same_twice_is_to_unpin_it(long_talk: str, log: Log, run: Run) -> None:
    run("compact", "pin", PIN)
    (id,) = pin_ids(log)

    result = run("compact", "unpin", id, id)

    assert (result.exit_code, result.stderr) == (0, f"Unpinned {id}\n")
    assert pin_ids(log) == []


def test_a_dry_run_tells_what_the_pins_take(long_talk: str, run: Run) -> None:
    shown = run("compact", "-c", "--dry-run", "--pin", PIN, "-m", "extractive").stdout

    assert "(1 pin)" in shown


@pytest.mark.parametrize("flags", [[], ["-n"]])
def test_an_automatic_compaction_carries_the_pins(
    flags: list[str], long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "pin", PIN)

    options = ["--auto-threshold", "4x", "--compact-model", "extractive"]
    run("-c", "And today?", *options, *flags)

    (prompt,) = models.chatty.sent
    assert text_of(prompt.messages[2]).endswith(f"{HEADING}\n- {PIN}")


def test_pins_that_leave_no_room_below_a_threshold_do_not_end_a_conversation(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "pin", PIN * 20)

    result = run("-c", "And today?", "--auto-threshold", "400", "--compact-model", "extractive")

    assert result.exit_code == 0
    assert "The pins alone take" in result.stderr
    assert "Raise --auto-threshold or the setting max-summary, or remove pins" in result.stderr
    assert len(log.threads()) == 1


def test_a_conversation_of_an_older_llm_can_be_pinned(
    user_path: Path, models: Plugin, run: Run
) -> None:
    old = OldLog(user_path / "logs.db")
    id = old.long_talk()
    response = next(old.db["responses"].rows)["id"]

    assert "Nothing is pinned" in run("compact", "pins").stderr
    assert "turns" not in old.db.table_names()
    assert run("compact", "pin", response, "--response").exit_code == 0
    assert run("compact", "pin", PIN).exit_code == 0

    compaction = llm_compact.compact(model="extractive")
    assert compaction.source_id == id
    for row in sqlite_utils.Database(user_path / "logs.db")["compact_pins"].rows:
        assert row["text"] in compaction.summary


def head(pins: tuple[str, ...], language: str = "en") -> Head:
    return Head([], None, [], 0, language, 100, pins=pins)


@given(
    st.lists(st.text(st.sampled_from("#`- a\n\r>*"), min_size=1, max_size=20), max_size=4),
    st.sampled_from(sorted(all_words())),
)
def test_pins_are_whole_and_never_change_what_the_summary_says(
    texts: list[str], language: str
) -> None:
    summary = "Record of 4 messages.\n\n## Goal\n- Know the tides."
    pins = clean_pins(texts)

    pinned = with_pins(summary, head(pins, language))

    assert all(pin in pinned for pin in pins)
    assert without_pins(pinned) == summary
    before = [(heading, lines) for heading, lines in sections_of(summary)]
    added = sections_of(pinned)[len(before) :]
    assert sections_of(pinned)[: len(before)] == before
    assert [heading for heading, _ in added] == ([words(language)["pins"]] if pins else [])


def test_a_heading_of_the_same_words_does_not_cut_a_summary_short() -> None:
    summary = f"{HEADING}\n- One\n\n## Goal\nKnow the tides."

    assert without_pins(summary) == summary
    assert without_pins(with_pins(summary, head((f"a\n{HEADING}\n- b",)))) == summary


def test_python_is_told_of_pins_that_are_too_long(long_talk: str) -> None:
    with pytest.raises(ConversationError, match="The pins alone"):
        llm_compact.compact(model="extractive", pins=[PIN * 20], max_summary="50")


def test_what_a_terminal_could_not_read_is_pinned_with_a_character_missing(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    # So Python hands on an argument that is no UTF-8.
    assert run("compact", "pin", "port 5433 \udcff").exit_code == 0

    result = run("compact", "-c", "-m", "extractive", "mind \udcff", "--pin", "db \udcff")

    assert result.exit_code == 0, result.output
    assert "- port 5433 \ufffd\n- db \ufffd" in text_of(log.messages()[2])
