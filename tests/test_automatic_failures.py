"""What automatic compaction does when something fails: the conversation always goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log
from scripted import Plugin, Reply
from test_automatic_adapters import AUTO, SUMMARY, compactions, long_answer, talk_with
from test_hook import said_in_messages
from test_overflow import TOO_LONG

import llm_compact
from llm_compact import store
from llm_compact.conversation import history_of
from llm_compact.settings import read_settings

Run = Callable[..., Result]

WARNING = "Not compacted. The summarizer summer "
OFF = "Automatic compaction is off from here on"
RUBBISH = [
    (Reply(raises=RuntimeError("502 Bad\nGateway")), "failed: 502 Bad Gateway"),
    (Reply("## Goal\nHalf", raises=OSError("reset")), "failed: reset"),
    (Reply(""), "answered with nothing"),
    (Reply("I'm sorry, but I can't help with that."), "refused"),
    (Reply(calls=[("c1", "lookup", {"key": "x"})]), "answered with a tool call"),
    (Reply("<think>I should sum up"), "answered with reasoning only"),
    (Reply("The tides of six places, once more. " * 200), "tokens"),
]


@pytest.fixture
def talked(models: Plugin, log: Log) -> str:
    return talk_with("chatty", models.chatty, log)


def warnings(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line]


@pytest.mark.parametrize("options", [[], ["--async"]])
@pytest.mark.parametrize("reply, reason", RUBBISH)
def test_without_a_summary_the_conversation_goes_on_as_it_was(
    reply: Reply, reason: str, options: list[str], talked: str, models: Plugin, log: Log, run: Run
) -> None:
    # What is too long is to be made shorter, once.
    models.summer.replies = [reply, reply]
    models.chatty.replies = ["At six."]

    result = run("-c", *options, "And today?", *AUTO)

    assert (result.exit_code, result.stdout) == (0, "At six.\n")
    (warning,) = warnings(result)
    assert warning.startswith(WARNING)
    assert reason in warning
    assert len(models.chatty.sent[0].messages) == 14
    assert [thread["id"] for thread in log.threads()] == [talked]


def chat(run: Run, *questions: str, options: list[str] = AUTO) -> Result:
    return run("chat", "-c", *options, input="".join(f"{q}\n" for q in [*questions, "quit"]))


def test_two_failures_in_a_row_end_it(talked: str, models: Plugin, log: Log, run: Run) -> None:
    models.summer.replies = [Reply(""), Reply("")]

    result = chat(run, "One?", "Two?", "Three?", "Four?")

    assert result.exit_code == 0, result.output
    first, _, off = warnings(result)
    assert first.startswith(WARNING)
    assert off.startswith(OFF)
    assert len(models.summer.sent) == 2
    assert len(models.chatty.sent) == 4
    assert compactions(log) == []


def test_summaries_that_are_no_gain_end_it_too(
    talked: str, models: Plugin, log: Log, run: Run
) -> None:
    useless = "The tides of six places, once more. " * 90
    models.summer.replies = [Reply(useless), Reply(useless), SUMMARY]
    options = ["--auto-threshold", "8m", "--compact-model", "summer"]

    result = chat(run, "One?", "Two?", "Three?", options=options)

    assert result.exit_code == 0, result.output
    assert len(models.summer.sent) == 2
    assert "is not smaller than" in result.stderr
    assert OFF in result.stderr
    assert compactions(log) == []


def test_a_success_in_between_counts(talked: str, models: Plugin, log: Log, run: Run) -> None:
    models.chatty.replies = [long_answer(n) for n in range(9)]
    models.summer.replies = [Reply(""), SUMMARY, Reply(""), SUMMARY]

    result = chat(run, *(f"Question {n}?" for n in range(9)))

    assert result.exit_code == 0, result.output
    assert models.summer.replies == []
    assert OFF not in result.stderr
    assert len(compactions(log)) == 2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_compact.log.LOCK_TIMEOUT_MS", 50)


def test_a_log_that_can_not_be_written_costs_no_summary(
    talked: str, models: Plugin, log: Log, run: Run, impatient: None
) -> None:
    models.summer.replies = [SUMMARY, SUMMARY]

    with closing(sqlite3.connect(log.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        conversation = llm.cli.load_conversation(None)  # type: ignore[attr-defined]
        result = told_in_block(conversation, log, ["One?", "Two?", "Three?"])

    assert models.summer.sent == []
    first, _, off = result
    assert "database is locked" in first
    assert off.startswith(OFF)
    assert len(models.chatty.sent[-1].messages) == 13 + 5


def test_a_log_that_fails_after_the_summary_is_a_failure(
    talked: str, models: Plugin, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "_write", full)
    models.summer.replies = [SUMMARY, SUMMARY, SUMMARY]

    result = chat(run, "One?", "Two?", "Three?")

    assert result.exit_code == 0, result.output
    first, _, off = warnings(result)
    assert "database or disk is full" in first
    assert off.startswith(OFF)
    assert len(models.summer.sent) == 2
    assert [thread["id"] for thread in log.threads()] == [talked]


def test_a_log_that_can_not_be_read_ends_no_conversation(
    models: Plugin, log: Log, run: Run
) -> None:
    log.path.parent.mkdir(parents=True)
    log.path.write_text("This is no database. " * 500)
    conversation = llm.get_model("chatty").conversation()

    said = told_in_block(conversation, log, ["One?", "Two?"])

    assert len(models.chatty.sent) == 2
    assert said == []
    log.path.unlink()


def told_in_block(conversation: Any, log: Log, questions: list[str]) -> list[str]:
    """Ask with `auto()` around it, and return what was told."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("llm_compact")
    logger.addHandler(handler)
    try:
        with llm_compact.auto("400", model="summer", database=log.path):
            for question in questions:
                conversation.prompt(question).text()
    finally:
        logger.removeHandler(handler)
    return told


@pytest.mark.parametrize("options", [[], ["--async"]])
def test_where_it_would_not_fit_extractive_steps_in(
    options: list[str], talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [Reply("")]

    result = run("-c", *options, "And today?", *AUTO, "--window", "500")

    assert result.exit_code == 0, result.output
    warning, done = warnings(result)
    assert "answered with nothing" in warning
    assert warning.endswith("Using extractive, because the conversation would not fit")
    assert "with extractive" in done
    assert [row["summarizer"] for row in compactions(log)] == ["extractive"]


def test_extractive_in_its_place_does_not_make_the_summarizer_a_good_one(
    talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [long_answer(n) for n in range(12)]
    models.summer.replies = [Reply("")] * 9

    result = chat(run, *(f"Question {n}?" for n in range(12)), options=[*AUTO, "--window", "420"])

    assert result.exit_code == 0, result.output
    assert len(models.summer.sent) == 2
    assert OFF in result.stderr


def test_a_time_out_is_told_in_seconds(
    talked: str, models: Plugin, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_COMPACT_TIMEOUT", "0.2")
    models.chatty.replies = ["At six."]
    models.summer.replies = [Sleepy()]

    result = run("-c", "And today?", *AUTO)

    assert (result.exit_code, result.stdout) == (0, "At six.\n")
    assert warnings(result) == [
        "Not compacted. The summarizer summer did not answer within 0.2 seconds"
    ]


def test_a_time_out_of_nonsense_is_an_error(
    talked: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_COMPACT_TIMEOUT", "soon")

    result = run("-c", "And today?", *AUTO)

    assert result.exit_code == 2
    assert "LLM_COMPACT_TIMEOUT" in result.stderr
    assert "'soon'" in result.stderr


class Sleepy(Reply):
    """An answer that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()

    def events(self) -> Iterator[Any]:
        self.is_asked.set()
        threading.Event().wait(60)
        return iter(())


# Overflow


@pytest.mark.parametrize("message, window", TOO_LONG)
def test_a_request_that_was_too_long_is_tried_once_more_with_less(
    message: str, window: int | None, talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [SUMMARY]
    models.chatty.replies = [Reply(raises=ValueError(message)), "At six."]

    result = run("-c", "And today?", "--auto-threshold", "90k", *AUTO[2:])

    assert (result.exit_code, result.stdout) == (0, "At six.\n")
    first, second = models.chatty.sent
    assert len(first.messages) == 14
    assert history_of(second.messages).summary
    assert second.messages[-1] == first.messages[-1]
    assert [row["trigger"] for row in compactions(log)] == ["overflow"]
    assert read_settings().window("chatty") == window


def test_an_async_model_is_tried_once_more_as_well(
    talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [SUMMARY]
    models.chatty.replies = [Reply(raises=ValueError(TOO_LONG[0][0])), "At six."]

    result = run("-c", "--async", "And today?", "--auto-threshold", "90k", *AUTO[2:])

    assert (result.exit_code, result.stdout) == (0, "At six.\n")
    assert len(models.chatty.sent) == 2
    assert said_in_messages(models.chatty.sent[1].messages) == said_in_messages(log.messages()[:-1])
    assert read_settings().window("chatty") == 8192


def test_an_error_after_the_first_token_is_passed_on(
    talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [Reply("At six, or", raises=ValueError(TOO_LONG[0][0]))]

    result = run("-c", "And today?", "--auto-threshold", "90k", *AUTO[2:])

    assert result.exit_code == 1
    assert "At six, or" in result.stdout
    assert TOO_LONG[0][0] in result.stderr
    assert len(models.chatty.sent) == 1
    assert compactions(log) == []


@pytest.mark.parametrize(
    "message",
    [
        "invalid auth token",
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
        "max_tokens is too large: 100000",
    ],
)
def test_other_errors_are_passed_on(
    message: str, talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [Reply(raises=ValueError(message))]

    result = run("-c", "And today?", "--auto-threshold", "90k", *AUTO[2:])

    assert result.exit_code == 1
    assert result.stderr == f"Error: {message}\n"
    assert len(models.chatty.sent) == 1
    assert models.summer.sent == []


@pytest.mark.parametrize("options", [[], ["--auto-threshold", "off"]])
def test_without_a_threshold_an_overflow_is_passed_on(
    options: list[str], talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [Reply(raises=ValueError(TOO_LONG[0][0]))]

    result = run("-c", "And today?", *options)

    assert result.exit_code == 1
    assert len(models.chatty.sent) == 1
    assert compactions(log) == []
    assert read_settings().learned == {}


@pytest.mark.parametrize("options", [[], ["--async"]])
def test_an_overflow_after_the_second_try_is_passed_on(
    options: list[str], talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [SUMMARY]
    models.chatty.replies = [
        Reply(raises=ValueError("prompt is too long: 700 tokens > 600 maximum")),
        Reply(raises=ValueError("prompt is too long: 601 tokens > 600 maximum")),
    ]

    result = run("-c", *options, "And today?", "--auto-threshold", "90k", *AUTO[2:])

    assert result.exit_code == 1
    assert result.stderr.endswith("Error: prompt is too long: 601 tokens > 600 maximum\n")
    assert len(models.chatty.sent) == 2


def test_a_first_prompt_above_the_threshold_is_told_to_be_there(models: Plugin, run: Run) -> None:
    result = run("-m", "chatty", LONG * 9, "--auto-threshold", "200", *AUTO[2:])

    assert result.exit_code == 0
    assert warnings(result) == [
        "The request is above the threshold. "
        "Nothing to compact: the conversation is a single exchange"
    ]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (
            ["--compact-model", "summer", "--auto-threshold", "300"],
            "Raise --auto-threshold or the setting max-summary, or use another --compact-model",
        ),
        (
            ["--compact-model", "small", "--auto-threshold", "300"],
            "Use a model with a larger context window, or --compact-model extractive",
        ),
        (
            ["--compact-keep", "20%", "--auto-threshold", "300"],
            "Use --compact-keep 8k (tokens) or --compact-keep 2x (exchanges), or say the window: "
            "llm compact settings set window.chatty 32k",
        ),
    ],
)
def test_a_warning_advises_what_can_be_done_there(
    options: list[str], advice: str, talked: str, models: Plugin, run: Run
) -> None:
    run("compact", "settings", "set", "window.keyed", "60")
    run("aliases", "set", "small", "keyed")
    models.summer.replies = [Reply("The tides of six places, once more. " * 200)] * 2

    result = run("-c", "And today?", *options)

    assert result.exit_code == 0
    assert warnings(result)[0].endswith(advice)


def test_an_overflow_of_a_single_prompt_is_passed_on(models: Plugin, log: Log, run: Run) -> None:
    models.chatty.replies = [Reply(raises=ValueError(TOO_LONG[0][0]))]

    result = run("-m", "chatty", LONG * 9, "--auto-threshold", "90k", *AUTO[2:])

    assert result.exit_code == 1
    assert result.stderr.endswith(f"Error: {TOO_LONG[0][0]}\n")
    assert result.stderr.startswith("The model refused the request as too long. Nothing to compact")
    assert len(models.chatty.sent) == 1


def test_an_overflow_whose_compaction_fails_falls_back(
    talked: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [Reply("")]
    models.chatty.replies = [Reply(raises=ValueError(TOO_LONG[0][0])), "At six."]

    result = run("-c", "And today?", "--auto-threshold", "90k", *AUTO[2:])

    assert (result.exit_code, result.stdout) == (0, "At six.\n")
    assert "Using extractive" in result.stderr
    assert [row["summarizer"] for row in compactions(log)] == ["extractive"]


def test_after_an_overflow_the_limit_is_known(
    talked: str, models: Plugin, log: Log, run: Run
) -> None:
    overflow = Reply(raises=ValueError("prompt is too long: 700 tokens > 600 maximum"))
    models.chatty.replies = [overflow, *(long_answer(n) for n in range(8))]
    models.summer.replies = [SUMMARY] * 9

    result = chat(
        run,
        *(f"Question {n}?" for n in range(8)),
        options=["--auto-threshold", "90k", *AUTO[2:]],
    )

    assert result.exit_code == 0, result.output
    assert len(models.chatty.sent) == 9
    triggers = [row["trigger"] for row in compactions(log)]
    assert triggers[0] == "overflow"
    assert set(triggers[1:]) == {"auto"}


# Ctrl-C

PROGRAM = """
import sys, time, llm
from llm.plugins import pm
from llm.cli import cli

class Chatty(llm.Model):
    model_id = "chatty"
    def execute(self, prompt, stream, response, conversation):
        yield "ANSWERED"

class AsyncChatty(llm.AsyncModel):
    model_id = "chatty"
    async def execute(self, prompt, stream, response, conversation):
        yield "ANSWERED"

class Hanging(llm.Model):
    model_id = "hanging"
    def execute(self, prompt, stream, response, conversation):
        print("SUMMARIZING", flush=True)
        time.sleep(60)
        yield "never"

class Plugin:
    @llm.hookimpl
    def register_models(self, register):
        register(Chatty(), AsyncChatty())
        register(Hanging())

pm.register(Plugin())
cli()
"""


def interrupted(user_path: Path, *arguments: str, input: str = "") -> tuple[int, str]:
    """Run llm in a process, and press Ctrl-C while it summarizes. Exit code and output."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "LLM_USER_PATH": str(user_path)},
    )
    assert process.stdin and process.stdout
    process.stdin.write(input)
    process.stdin.close()
    process.stdin = None
    said = ""
    for line in process.stdout:
        said += line
        if "SUMMARIZING" in line:
            break
    process.send_signal(signal.SIGINT)
    # Much shorter than the summarizer sleeps, much longer than it takes to end.
    rest, _ = process.communicate(timeout=30)
    return process.returncode, said + rest


@pytest.mark.skipif(sys.platform == "win32", reason="No SIGINT for a child process there")
@pytest.mark.parametrize(
    "arguments, input",
    [
        (["-c", "And today?"], ""),
        (["-c", "--async", "And today?"], ""),
        (["chat", "-c"], "And today?\nquit\n"),
    ],
)
def test_ctrl_c_while_summarizing_ends_the_turn_and_leaves_the_log(
    arguments: list[str], input: str, talked: str, log: Log, user_path: Path
) -> None:
    before = log.rows()

    code, said = interrupted(user_path, *arguments, *AUTO[:3], "hanging", input=input)

    assert "SUMMARIZING" in said
    assert "ANSWERED" not in said
    assert "Traceback" not in said
    assert code != 0
    assert log.rows() == before


def test_a_hanging_summarizer_does_not_keep_the_process(
    talked: str, log: Log, user_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-c", "--async", "And today?", *AUTO[:3], "hanging"],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "LLM_USER_PATH": str(user_path), "LLM_COMPACT_TIMEOUT": "0.2"},
    )

    assert done.returncode == 0, done.stderr
    assert "ANSWERED" in done.stdout
    assert "did not answer within 0.2 seconds" in done.stderr


def test_a_cancelled_task_writes_nothing_and_lets_the_next_one_work(
    models: Plugin, log: Log
) -> None:
    talk_with("chatty", models.chatty, log)
    sleepy = Sleepy()
    models.summer.replies = [sleepy, SUMMARY]
    before = log.rows()

    async def change_of_mind() -> str:
        conversation = llm.cli.load_conversation(None, async_=True)  # type: ignore[attr-defined]
        with llm_compact.auto("400", model="summer", database=log.path):
            task = asyncio.ensure_future(conversation.prompt("Now?").text())
            await asyncio.to_thread(sleepy.is_asked.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert log.rows() == before
            return str(await conversation.prompt("And now?").text())

    assert asyncio.run(change_of_mind()) == "Answer 1."
    assert len(compactions(log)) == 1
