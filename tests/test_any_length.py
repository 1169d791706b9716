"""A head of any length, with a summarizer of any context window."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, Talk, recorded
from conversations import conversations
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import ToolCallPart, ToolResultPart
from oracle import count_tokens
from scripted import Plugin, Reply

from llm_compact.errors import SummarizerError
from llm_compact.estimate import estimate
from llm_compact.summarizers.model import ModelSummarizer, planned_calls
from llm_compact.summary import Answer, Head, Watch
from llm_compact.transcript import chunks_of, pieces_of

Run = Callable[..., Result]


class Small(llm.Model):
    """A model that counts what it is sent and refuses what exceeds its window."""

    model_id = "small"
    can_stream = True

    def __init__(
        self, window: int, answer: str = "Tides were told.", *, tells: bool = True
    ) -> None:
        self.window = window
        self.answer = answer
        self.tells = tells
        self.sent: list[str] = []
        self.lock = threading.Lock()

    def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
        text = f"{prompt.system}\n{prompt.prompt}"
        tokens = estimate(text)
        with self.lock:
            if tokens > self.window:
                told = f"Requested tokens ({tokens}) exceed context window of {self.window}"
                raise ValueError(told if self.tells else "prompt too long; exceeded context length")
            self.sent.append(text)
        response.set_usage(input=tokens, output=5)
        yield self.answer

    def seen(self) -> str:
        return "\n".join(self.sent)


def head_of(messages: list[llm.Message], **extra: Any) -> Head:
    tokens = count_tokens(messages)
    fields: dict[str, Any] = {"previous": None, "language": "en", "room": 1_000, **extra}
    return Head(messages=messages, originals=messages, tokens=tokens, **fields)


def agent_run(rounds: int, words: int) -> list[llm.Message]:
    """Numbered messages: fact-N-call, fact-N-text and fact-N-output are each said once."""
    messages: list[llm.Message] = []
    for n in range(rounds):
        if n % 5 == 0:
            messages.append(llm.user(f"Request number {n} is fact-{n}-user, please."))
        call = ToolCallPart(
            name="read", arguments={"path": f"fact-{n}-call.md"}, tool_call_id=str(n)
        )
        output = f"fact-{n}-output " + "the tide is high and it will be low again " * (words // 9)
        result = ToolResultPart(name="read", output=output, tool_call_id=str(n))
        messages += [llm.assistant(f"I read fact-{n}-text.", call), llm.tool_message(result)]
    return messages


def facts_in(messages: list[llm.Message]) -> set[str]:
    return set(re.findall(r"fact-\d+-\w+", str(messages)))


@pytest.mark.parametrize("window", [512, 4_000])
def test_every_message_of_a_very_long_conversation_reaches_a_small_summarizer(window: int) -> None:
    messages = agent_run(rounds=620, words=440)
    head = head_of(messages)
    model = Small(window)
    assert head.tokens > 300_000

    answer = ModelSummarizer(model, window=window).summarize(head, Watch())

    assert facts_in(messages) <= set(re.findall(r"fact-\d+-\w+", model.seen()))
    assert answer.text == "Tides were told."
    assert answer.usage.calls == len(model.sent)
    assert answer.usage.input == sum(estimate(text) for text in model.sent)


def test_a_single_huge_message_is_read_to_its_end() -> None:
    text = " ".join(f"word{n}" for n in range(60_000))
    head = head_of([llm.user(text), llm.assistant("I see.")])
    model = Small(4_000)
    assert head.tokens > 150_000

    ModelSummarizer(model, window=4_000).summarize(head, Watch())

    assert set(re.findall(r"word\d+", text)) <= set(re.findall(r"word\d+", model.seen()))


@pytest.mark.parametrize("tells", [True, False])
def test_a_window_that_nobody_knew_is_learned_from_the_error(tells: bool) -> None:
    messages = agent_run(rounds=40, words=200)
    model = Small(3_000, tells=tells)

    ModelSummarizer(model).summarize(head_of(messages), Watch())

    assert facts_in(messages) <= set(re.findall(r"fact-\d+-\w+", model.seen()))


def test_a_window_that_is_smaller_than_it_says_ends_in_an_error_not_in_a_loop() -> None:
    class Never(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            self.sent.append(prompt.prompt)
            raise ValueError("Requested tokens (535) exceed context window of 512")
            yield ""

    model = Never(0)

    with pytest.raises(SummarizerError, match="can't take even"):
        ModelSummarizer(model).summarize(head_of(agent_run(40, 200)), Watch())
    assert len(model.sent) < 15


def test_a_window_too_small_for_the_instructions_is_refused() -> None:
    with pytest.raises(SummarizerError, match="has a window of 100 tokens"):
        ModelSummarizer(Small(100), window=100).summarize(head_of(agent_run(3, 50)), Watch())


def test_a_model_whose_answers_are_as_long_as_what_it_is_sent_is_given_up() -> None:
    class Talker(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            self.sent.append(prompt.prompt)
            yield " ".join(f"word{n * len(self.sent)}" for n in range(len(prompt.prompt) // 8))

    model = Talker(2_000)

    with pytest.raises(SummarizerError, match="partial summaries any smaller"):
        ModelSummarizer(model, window=2_000).summarize(head_of(agent_run(40, 200)), Watch())
    assert len(model.sent) < 40


def test_records_are_merged_in_order_and_the_previous_one_comes_first() -> None:
    class Numbered(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            self.sent.append(prompt.prompt)
            yield f"Record-{len(self.sent)}."

    model = Numbered(2_000)
    head = head_of(agent_run(40, 200), previous="Record-0 of long ago.")

    answer = ModelSummarizer(model, window=2_000).summarize(head, Watch())

    merged = model.sent[-1]
    order = re.findall(r"Record-(\d+)", merged)
    assert order == [str(n) for n in range(len(model.sent))]
    assert answer.text == f"Record-{len(model.sent)}."
    assert "Record-0" not in "".join(model.sent[:-1])


def test_a_part_that_fails_is_named() -> None:
    class Moody(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            self.sent.append(prompt.prompt)
            yield "" if len(self.sent) >= 3 else "Fine."

    with pytest.raises(SummarizerError, match=r"answered with nothing \(part 3 of \d+\)"):
        ModelSummarizer(Moody(2_000), window=2_000).summarize(head_of(agent_run(40, 200)), Watch())


def test_a_part_that_a_model_makes_nothing_of_is_asked_for_in_smaller_ones() -> None:
    class Lost(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            list(super().execute(prompt, stream, response))
            yield "<think>So many files" if len(self.sent) == 3 else f"Record {len(self.sent)}."

    messages = agent_run(40, 200)
    model = Lost(2_000)

    ModelSummarizer(model, window=2_000).summarize(head_of(messages), Watch())

    third, *smaller = model.sent[2:6]
    assert facts_in(messages) <= set(re.findall(r"fact-\d+-\w+", model.seen()))
    assert set(re.findall(r"fact-\d+-\w+", third)) <= set(
        re.findall(r"fact-\d+-\w+", "".join(smaller))
    )
    assert max(map(estimate, smaller)) < estimate(third)
    assert "Record 4.\n\nRecord 5." in model.sent[-1]
    assert "So many files" not in model.sent[-1]


def test_a_model_that_fails_is_not_asked_for_half_of_it() -> None:
    class Broken(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            yield from super().execute(prompt, stream, response)
            if len(self.sent) == 2:
                raise RuntimeError("your credit is used up")

    model = Broken(2_000)

    with pytest.raises(SummarizerError, match="your credit is used up"):
        ModelSummarizer(model, window=2_000).summarize(head_of(agent_run(40, 200)), Watch())
    assert len(model.sent) == 2


def test_jobs_run_at_the_same_time_and_stay_in_order() -> None:
    barrier = threading.Barrier(4, timeout=20)

    class Parallel(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            part = re.search(r"Here is part (\d+) of (\d+)", prompt.prompt)
            if part and int(part[1]) <= int(part[2]) // 4 * 4:
                barrier.wait()
            with self.lock:
                self.sent.append(prompt.prompt)
            yield f"Part-{part[1]}." if part else "All."

    model = Parallel(5_000)

    answer = ModelSummarizer(model, window=5_000, jobs=4).summarize(
        head_of(agent_run(80, 300)), Watch()
    )

    order = re.findall(r"Part-(\d+)\.", model.sent[-1])
    assert order == sorted(order, key=int) and len(order) >= 4
    assert answer.text == "All."


@given(conversations(), st.integers(64, 600))
def test_chunks_leave_nothing_out_and_fit(chain: list[llm.Message], capacity: int) -> None:
    pieces = pieces_of(chain)

    chunks = chunks_of(pieces, capacity)

    assert "".join(p.text for chunk in chunks for p in chunk) == "".join(p.text for p in pieces)
    assert all(sum(p.tokens for p in chunk) <= capacity for chunk in chunks)


def test_chunks_end_between_exchanges_if_they_can() -> None:
    messages = []
    for n in range(30):
        messages += [llm.user(f"Question {n}?"), llm.assistant("The tide was high. " * (n % 7 + 3))]

    chunks = chunks_of(pieces_of(messages), 400)

    assert len(chunks) > 3
    assert all(chunk[0].label.endswith("user") for chunk in chunks)


def test_the_calls_are_told_beforehand(long_talk: str, models: Plugin, run: Run) -> None:
    told = run("compact", "-c", "-m", "summer", "--window", "512", "--dry-run")
    data = json.loads(
        run("compact", "-c", "-m", "summer", "--window", "512", "--dry-run", "--json").stdout
    )
    one = run("compact", "-c", "-m", "summer", "--dry-run")
    none = run("compact", "-c", "-m", "extractive", "--dry-run")

    assert f"with summer in about {data['calls']} calls" in told.stdout
    assert 1 < data["calls"] < 10
    assert "with summer in 1 call" in one.stdout
    assert "with extractive in 0 calls" in none.stdout


@pytest.mark.parametrize("window", [512, 2_000, 16_000])
def test_about_as_many_calls_are_made_as_were_told(window: int) -> None:
    head = head_of(agent_run(200, 300))
    model = Small(window)

    ModelSummarizer(model, window=window).summarize(head, Watch())

    assert planned_calls(head, window) / 2 <= len(model.sent) <= 2 * planned_calls(head, window)


def test_a_small_window_works_from_the_command_line(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    result = run("compact", "-c", "-m", "summer", "--window", "512", "--json")

    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["usage"]["calls"] == len(models.summer.sent) > 1
    row = next(log.db["compactions"].rows)
    assert row["calls"] == data["usage"]["calls"]
    assert row["prompt_version"] == "3-small"


SHORT = "The tides of six places."


def test_too_long_a_summary_is_asked_once_to_be_shortened(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = ["The tides were told at great length. " * 20, SHORT]

    result = run("compact", "-c", "-m", "summer", "--max-summary", "30")

    assert result.exit_code == 0
    assert result.stdout == recorded(SHORT) + "\n"
    assert "It is too long." in models.summer.sent[1].prompt
    assert "at great length." in models.summer.sent[1].prompt
    assert next(log.db["compactions"].rows)["calls"] == 2


def test_a_summary_that_stays_too_long_is_refused(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = ["The tides were told at great length. " * 20] * 2
    before = log.rows()

    result = run("compact", "-c", "-m", "summer", "--max-summary", "30")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "only 30 are allowed" in result.stderr
    assert log.rows() == before


@pytest.mark.parametrize("size, most", [("60", 60), ("20%", 90)])
def test_the_contract_holds_for_extractive_too(
    size: str, most: int, long_talk: str, log: Log, run: Run
) -> None:
    result = run("compact", "-c", "-m", "extractive", "--max-summary", size, "--json")

    assert result.exit_code == 0
    assert 0.5 * most < json.loads(result.stdout)["summary_tokens"] <= most


@pytest.mark.parametrize("size", ["2x", "6m", "120%", "0", "long"])
def test_a_length_that_is_none(size: str, long_talk: str, run: Run) -> None:
    assert run("compact", "-c", "--max-summary", size).exit_code == 2


def save_template(user_path: Path, name: str, text: str) -> None:
    (user_path / "templates").mkdir(parents=True, exist_ok=True)
    (user_path / "templates" / f"{name}.yaml").write_text(text)


def test_a_template_is_used_instead_of_our_prompt(
    long_talk: str, models: Plugin, log: Log, run: Run, user_path: Path
) -> None:
    text = "model: sum\nsystem: Be a {clerk}\nprompt: 'Minutes as {\"json\": [1]} of: $input'\n"
    save_template(user_path, "minutes", text)
    models.summer.replies = [SHORT]

    result = run("compact", "-c", "-t", "minutes")

    assert result.exit_code == 0
    (sent,) = models.summer.sent
    assert sent.system == "Be a {clerk}"
    assert sent.prompt.startswith('Minutes as {"json": [1]} of: ===')
    assert "When was high water in Nuuk?" in sent.prompt
    row = next(log.db["compactions"].rows)
    assert (row["summarizer"], row["prompt_version"]) == ("summer", "template minutes")


def test_a_template_is_used_on_every_path(
    talk: Talk, models: Plugin, run: Run, user_path: Path
) -> None:
    save_template(user_path, "minutes", "prompt: 'MINUTES {} $input'")
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(30)])

    result = run("compact", "-c", "-m", "summer", "-t", "minutes", "--window", "1k")

    assert result.exit_code == 0
    assert len(models.summer.sent) > 3
    assert all(sent.prompt.startswith("MINUTES {} ===") for sent in models.summer.sent)


def test_the_model_of_the_command_line_counts_before_that_of_the_template(
    long_talk: str, models: Plugin, run: Run, user_path: Path
) -> None:
    save_template(user_path, "minutes", "model: nope\nprompt: 'Minutes: $input'")
    models.summer.replies = [SHORT]

    assert run("compact", "-c", "-t", "minutes", "-m", "summer").exit_code == 0
    refused = run("compact", "--cid", long_talk, "--again", "-t", "minutes")
    assert refused.exit_code == 1
    assert "Unknown model: nope" in refused.stderr


@pytest.mark.parametrize(
    "text, reason",
    [
        ("prompt: no place for it", "has no $input"),
        ("prompt: $input\ntools: [lookup]", "has tools"),
        ("prompt: $input\nschema_object: {type: object}", "has schema_object"),
        ("prompt: $input and $more", "Missing variables: more"),
    ],
)
def test_a_template_that_cannot_be_used(
    text: str, reason: str, long_talk: str, models: Plugin, run: Run, user_path: Path
) -> None:
    save_template(user_path, "bad", text)

    result = run("compact", "-c", "-m", "summer", "-t", "bad")

    assert result.exit_code == 1
    assert reason in result.stderr


def test_an_unknown_template(long_talk: str, models: Plugin, run: Run) -> None:
    result = run("compact", "-c", "-m", "summer", "-t", "nope")

    assert result.exit_code == 1
    assert "Invalid template: nope" in result.stderr


def test_progress_is_told_in_calls() -> None:
    class Watching(Watch):
        def __init__(self) -> None:
            self.told: list[tuple[int, int]] = []

        def progress(self, done: int, calls: int) -> None:
            self.told.append((done, calls))

    watch = Watching()

    answer: Answer = ModelSummarizer(Small(2_000), window=2_000).summarize(
        head_of(agent_run(40, 200)), watch
    )

    assert [done for done, _ in watch.told] == list(range(1, answer.usage.calls + 1))
    assert watch.told[-1][1] >= watch.told[-1][0]


def test_a_reply_that_is_cut_off_in_a_part_is_not_used(
    models: Plugin, talk: Talk, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(30)])
    models.summer.replies = ["Fine.", *[Reply("Half of", json={"finish_reason": "length"})] * 2]

    result = run("compact", "-c", "-m", "summer", "--window", "1k")

    assert result.exit_code == 1
    assert "cut off by its length limit" in result.stderr and "(part 2 of" in result.stderr


def test_a_model_that_goes_round_until_its_window_is_full_is_refused() -> None:
    class Circling(Small):
        def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
            list(super().execute(prompt, stream, response))
            told = "The user wants to know what the rules, decisions and paths are open. "
            left = self.window - estimate(self.sent[-1])
            yield told * (left // estimate(told))

    model = Circling(900)

    with pytest.raises(SummarizerError, match="repeated itself until its context window was full"):
        ModelSummarizer(model, window=900).summarize(head_of(agent_run(12, 60)), Watch())


def test_lines_of_the_transcript_that_a_model_copies_are_no_part_of_its_summary(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    told = "The tides.\n== A heading ==\n=== 06:15 ===\nHigh water."
    models.summer.replies = [f"===8a87=== [1] user\n{told}\n===8a87870a45cf=== end"]

    assert run("compact", "-c", "-m", "summer").stdout.strip() == recorded(told)
    assert log.messages()[2].parts[0].text == recorded(told)


def test_a_record_is_a_quarter_of_the_window_at_most(
    models: Plugin, long_talk: str, run: Run
) -> None:
    run("compact", "-c", "-m", "summer", "--window", "512")

    asked = [re.search(r"in at most (\d+) words", sent.prompt) for sent in models.summer.sent]
    assert {match[1] for match in asked if match} == {str(round(512 // 4 * 0.7))}


def test_the_call_that_did_not_fit_is_counted(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    overflow = ValueError("Requested tokens (535) exceed context window of 512")
    models.summer.replies = [Reply(raises=overflow)]

    assert run("compact", "-c", "-m", "summer", "--quiet").exit_code == 0
    assert next(log.db["compactions"].rows)["calls"] == len(models.summer.sent)


def test_a_dry_run_tells_that_a_window_is_too_small(
    long_talk: str, models: Plugin, run: Run
) -> None:
    result = run("compact", "-c", "-m", "sum", "--window", "100", "--dry-run")

    assert result.exit_code == 1
    assert "Error: The summarizer summer has a window of 100 tokens" in result.stderr
