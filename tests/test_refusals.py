"""What is refused, in one line, with nothing changed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from conftest import LONG, Log, Talk, recorded
from scripted import Plugin, Reply

Run = Callable[..., Result]

GOOD = "## Goal\nKnow the tides."


def one_line(result: Result) -> str:
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize(
    "reply, reason",
    [
        (Reply(raises=RuntimeError("502 Bad\nGateway")), "failed: 502 Bad Gateway"),
        (Reply("## Goal\nHalf of", raises=OSError("connection reset")), "connection reset"),
        (Reply(""), "answered with nothing"),
        (Reply(" \n\t \n"), "answered with nothing"),
        (Reply("[]"), "answered with nothing"),
        (Reply("null"), "answered with nothing"),
        (Reply("\x00 … 🤷"), "answered with nothing"),
        (Reply(reasoning="Let me think about the tides."), "answered with reasoning only"),
        (Reply("<think>I should sum up the tides"), "answered with reasoning only"),
        (Reply(calls=[("c1", "lookup", {"key": "x"})]), "answered with a tool call"),
        (Reply(GOOD, calls=[("c1", "lookup", {"key": "x"})]), "answered with a tool call"),
        (Reply('<tool_call>{"name": "lookup"}</tool_call>'), "answered with a tool call"),
        (Reply(GOOD, json={"choices": [{"finish_reason": "length"}]}), "cut off"),
        (Reply(GOOD, json={"finish_reason": "length"}), "cut off"),
        (Reply(GOOD, json={"stop_reason": "max_tokens"}), "cut off"),
        (Reply(GOOD, json={"candidates": [{"finishReason": "MAX_TOKENS"}]}), "cut off"),
        (
            Reply(GOOD, json={"incomplete_details": {"reason": "max_output_tokens"}}),
            "cut off",
        ),
        (Reply(GOOD, json={"done_reason": "length"}), "cut off"),
        (Reply("I'm sorry, but I can't help with that."), "refused: I'm sorry"),
        (Reply("抱歉，我无法总结这段对话。"), "refused: 抱歉"),
        (Reply("I", json={"candidates": [{"finishReason": "SAFETY"}]}), "withheld its answer"),
        (Reply("The tides, again and again. " * 200), "not smaller than"),
    ],
)
def test_an_answer_that_is_no_summary_is_not_stored(
    reply: Reply, reason: str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [reply]
    before = log.rows()

    result = run("compact", "-c", "-m", "summer", "--json")

    assert result.exit_code == 1
    assert "The summarizer summer" in one_line(result)
    assert reason in one_line(result)
    assert result.stdout == ""
    assert log.rows() == before


def test_an_answer_as_long_as_its_limit_was_cut_off(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [Reply(GOOD, usage=(900, 20))]

    result = run("compact", "-c", "-m", "summer", "-o", "max_tokens", "20")

    assert result.exit_code == 1
    assert "cut off by its length limit" in result.stderr


def test_a_stop_that_is_no_limit_is_fine(long_talk: str, models: Plugin, run: Run) -> None:
    models.summer.replies = [Reply(GOOD, json={"choices": [{"finish_reason": "stop"}]})]

    assert run("compact", "-c", "-m", "summer").exit_code == 0


def test_a_summary_that_tells_of_a_refusal_is_no_refusal(
    long_talk: str, models: Plugin, run: Run
) -> None:
    models.summer.replies = ["## Goal\nKnow the tides.\n\n## Errors\nI'm sorry, I can't: 403"]

    assert run("compact", "-c", "-m", "summer").exit_code == 0


def test_ctrl_c_writes_nothing(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    models.summer.replies = [Reply("## Goal", raises=KeyboardInterrupt())]
    before = log.rows()

    result = run("compact", "-c", "-m", "summer", "--json")

    assert result.exit_code == 1
    assert one_line(result) == "Error: Interrupted. Nothing was written"
    assert log.rows() == before


def test_no_database(log: Log, models: Plugin, run: Run) -> None:
    result = run("compact", "-c")

    assert result.exit_code == 1
    assert one_line(result) == f"Error: No log database found at {log.path}"
    assert not log.path.exists()


def test_a_file_that_is_no_database(log: Log, models: Plugin, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)

    result = run("compact", "-c", "-d", str(path))

    assert result.exit_code == 1
    assert "file is not a database" in one_line(result)


def test_an_empty_log(log: Log, models: Plugin, run: Run) -> None:
    assert log.store.verify() == []

    result = run("compact", "-c")

    assert (result.exit_code, one_line(result)) == (1, "Error: No conversations found in the log")


def test_an_unknown_id(long_talk: str, run: Run) -> None:
    result = run("compact", "--cid", "01nope", "-m", "extractive")

    assert result.exit_code == 1
    assert one_line(result) == "Error: No conversation found with id=01nope"


def test_an_unknown_model(long_talk: str, log: Log, run: Run) -> None:
    before = log.rows()

    result = run("compact", "-c", "-m", "gpt-99")

    assert result.exit_code == 1
    assert "Unknown model: gpt-99" in one_line(result)
    assert log.rows() == before


def test_a_conversation_whose_model_is_gone(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.hide_chatty = True

    refused = run("compact", "-c")
    dry = run("compact", "-c", "--dry-run")
    offline = run("compact", "-c", "-m", "extractive")

    assert refused.exit_code == 1
    assert "Unknown model: chatty" in one_line(refused)
    assert "use extractive" in one_line(refused)
    assert (dry.exit_code, offline.exit_code) == (0, 0)


def test_an_unknown_option(long_talk: str, models: Plugin, run: Run) -> None:
    of_model = run("compact", "-c", "-m", "summer", "-o", "heat", "2")
    of_extractive = run("compact", "-c", "-m", "extractive", "-o", "heat", "2")

    assert (of_model.exit_code, of_extractive.exit_code) == (1, 1)
    assert "heat" in one_line(of_model)
    assert "extractive has no option 'heat'" in one_line(of_extractive)


def test_an_empty_conversation(log: Log, models: Plugin, run: Run) -> None:
    id = log.store.create_thread(name="empty")

    result = run("compact", "-c")

    assert (result.exit_code, one_line(result)) == (1, f"Error: Conversation {id} is empty")


@pytest.mark.parametrize("keep", [(), ("--keep", "2x"), ("--keep", "1")])
def test_one_exchange(keep: tuple[str, ...], talk: Talk, run: Run) -> None:
    talk([("How high?", LONG.format(place="Ribe", n=1))])

    result = run("compact", "-c", "-m", "extractive", *keep)

    assert result.exit_code == 3
    assert "Nothing to compact: the conversation is a single exchange" in one_line(result)


def test_a_summary_inside_of_an_exchange_is_told_in_messages_alone(
    talk: Talk, log: Log, run: Run
) -> None:
    calls = [Reply(calls=[(f"c{n}", "lookup", {"key": "x" * 200})]) for n in range(6)]
    talk([("Look it up, six times.", [*calls, LONG.format(place="Ribe", n=1)])])

    result = run("compact", "-c", "-m", "extractive")

    row = next(log.db["compactions"].rows)
    assert row["exchanges_summarized"] == 0
    told = f"({row['messages_summarized']} messages summarized, {row['messages_kept']} kept)"
    assert told in result.stderr


def test_keep_as_much_as_there_is(long_talk: str, run: Run) -> None:
    for keep in ("6x", "12m", "100k"):
        result = run("compact", "-c", "-m", "extractive", "--keep", keep)

        assert result.exit_code == 3
        assert f"--keep {keep} keeps" in one_line(result)


def test_nothing_to_gain(talk: Talk, models: Plugin, log: Log, run: Run) -> None:
    talk([("Hi", "Hi."), ("Well?", "Well."), ("Bye", LONG.format(place="Ribe", n=1))])
    before = log.rows()

    result = run("compact", "-c", "-m", "summer")

    assert result.exit_code == 3
    assert "Nothing to gain" in one_line(result)
    assert models.summer.sent == []
    assert log.rows() == before


def test_a_pending_tool_call_that_would_have_to_be_cut(models: Plugin, log: Log, run: Run) -> None:
    models.chatty.replies = [Reply(calls=[("c1", "lookup", {"key": "x" * 2_000})])]
    # The tool is not offered, so the call stays without a result.
    run("-m", "chatty", "Look it up")

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 1
    assert "ends in a tool call that has no result yet" in one_line(result)


def test_a_pending_tool_call_behind_other_exchanges_is_kept(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(4)], tools=())
    models.chatty.replies = [Reply(calls=[("c1", "lookup", {"key": "x"})])]
    run("-c", "Look it up")

    assert run("compact", "-c", "-m", "extractive").exit_code == 0
    assert log.messages()[-1].parts[0].tool_call_id == "c1"


@pytest.mark.parametrize("size", ["many", "0", "0x", "-2", "1.5x", "2 exchanges", ""])
@pytest.mark.parametrize(
    ("option", "fits"),
    [
        ("--keep", "2x (exchanges), 6m (messages), 8k (tokens) or 20% (of the context window)\n"),
        ("--window", "no number of tokens. Use 32k or 32000\n"),
        ("--max-summary", "no length of a summary. Use 1k (tokens) or 5% (of what it replaces)\n"),
    ],
)
def test_a_size_that_is_none_is_refused_with_those_that_fit(
    option: str, fits: str, size: str, long_talk: str, run: Run
) -> None:
    result = run("compact", "-c", option, size)

    assert result.exit_code == 2
    assert f"{option}'" in result.stderr
    assert fits in result.stderr


@pytest.mark.parametrize(("word", "name"), [("lst", "list"), ("shows", "show"), ("unpn", "unpin")])
def test_a_mistyped_command_is_no_focus(
    word: str, name: str, long_talk: str, log: Log, run: Run
) -> None:
    before = log.rows()

    result = run("compact", word, "-m", "extractive")

    assert result.exit_code == 2
    assert f"Did you mean llm compact {name}? With {word!r} as focus: llm compact run {word}" in (
        result.stderr
    )
    assert log.rows() == before


@pytest.mark.parametrize(
    "args",
    [("run", "lst"), ("--focus", "lst"), ("-c", "lst"), ("lst", "of", "tides"), ("tides",)],
)
def test_what_is_meant_as_a_focus_is_one(args: tuple[str, ...], long_talk: str, run: Run) -> None:
    assert run("compact", *args, "-m", "extractive").exit_code == 0


def test_a_percentage_without_a_known_window(long_talk: str, run: Run) -> None:
    result = run("compact", "-c", "--keep", "20%")

    assert result.exit_code == 1
    assert "No context window known for 'chatty'" in one_line(result)
    assert "--keep 8k (tokens)" in one_line(result)


def test_focus_given_twice(long_talk: str, run: Run) -> None:
    assert run("compact", "-c", "--focus", "a", "b").exit_code == 2


def test_a_conversation_that_goes_on_meanwhile_is_not_cut_off(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    class Meanwhile(Reply):
        def finish(self, response):  # type: ignore[no-untyped-def]
            run("--cid", long_talk, "One more thing")
            super().finish(response)

    models.summer.replies = [Meanwhile(GOOD)]

    result = run("compact", "--cid", long_talk, "-m", "summer", "--json")

    assert result.exit_code == 1
    assert "went on while it was summarized" in one_line(result)
    assert len(log.threads()) == 1
    assert "compactions" not in log.db.table_names()


def test_a_write_that_fails_leaves_no_trace(
    long_talk: str, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_compact import store

    def fail(*args: object) -> str:
        raise RuntimeError("power cut")

    monkeypatch.setattr(store, "newest_conversation", fail)  # the last step of the write
    before = log.rows()

    result = run("compact", "--cid", long_talk, "-m", "extractive")

    assert isinstance(result.exception, RuntimeError)
    assert log.rows() == before


def test_a_locked_database_is_waited_for(long_talk: str, log: Log, run: Run) -> None:
    code = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('begin immediate'); print('locked', flush=True); time.sleep(1);"
        "c.execute('commit')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(log.path)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        started = time.monotonic()
        result = run("compact", "--cid", long_talk, "-m", "extractive")

    assert result.exit_code == 0
    assert time.monotonic() - started > 0.5


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), BaseException("odd")])
def test_whatever_a_model_raises_is_a_failure(
    error: BaseException, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [Reply(raises=error)]

    result = run("compact", "-c", "-m", "summer")

    assert result.exit_code == 1
    assert "The summarizer summer failed: " in one_line(result)
    assert len(log.threads()) == 1


def test_an_error_stands_on_a_line_of_its_own(
    long_talk: str, models: Plugin, run: Run, terminal: None
) -> None:
    models.summer.replies = [Reply("## Goal and", raises=RuntimeError("connection lost."))]

    result = run("compact", "-c", "-m", "summer")

    assert result.output.startswith(recorded("## Goal and\nError: The summarizer summer failed: "))
    assert result.output.endswith("connection lost. Nothing was written\n")


def test_an_empty_id(long_talk: str, models: Plugin, run: Run) -> None:
    result = run("compact", "--cid", "")

    assert result.exit_code == 2
    assert "--cid is empty" in result.stderr
    assert models.chatty.sent == []


def test_a_log_that_cannot_be_written_is_noticed_before_the_summary_is_paid_for(
    long_talk: str, models: Plugin, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_compact import compaction

    def fail(db: object) -> None:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(compaction, "check_writable", fail)

    result = run("compact", "-c", "-m", "summer")

    assert result.exit_code == 1
    assert "readonly database. Nothing was written" in one_line(result)
    assert models.summer.sent == []


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_database_that_is_no_log_is_left_as_it_is(
    options: tuple[str, ...], models: Plugin, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "mine.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table mine (x)")
    before = path.read_bytes()

    result = run("compact", "-c", "-m", "extractive", "-d", str(path), *options)

    assert result.exit_code == 1
    assert path.read_bytes() == before


def test_an_async_model_works_in_a_program_with_a_loop_of_its_own(
    long_talk: str, models: Plugin
) -> None:
    import asyncio

    import llm_compact

    models.summer.replies = [GOOD]

    async def program() -> str:
        return llm_compact.compact(model="async-only").summary

    assert asyncio.run(program()) == recorded(GOOD)


def test_an_empty_id_from_python_is_not_the_newest_conversation(long_talk: str) -> None:
    import llm_compact

    with pytest.raises(llm_compact.CompactionError, match="No conversation found with id="):
        llm_compact.compact("", model="extractive")


def test_what_was_kept_is_not_eaten_by_the_same_command_again(
    long_talk: str, log: Log, run: Run
) -> None:
    assert run("compact", "-c", "-m", "extractive").exit_code == 0
    before = log.rows()

    again = run("compact", "-c", "-m", "extractive")

    assert again.exit_code == 3
    assert "Nothing was said since this conversation was compacted. Use --keep" in again.stderr
    assert log.rows() == before
    assert run("compact", "-c", "-m", "extractive", "--keep", "1x").exit_code == 0
    assert run("-c", "And now?").exit_code == 0
    assert run("compact", "-c", "-m", "extractive").exit_code == 0
