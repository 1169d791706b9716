"""What a person asks for in `llm chat`, and a program with `llm_compact.auto()`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, recorded
from conversations import PICTURE
from llm.parts import AttachmentPart
from scripted import Plugin, Reply, registered
from test_automatic_adapters import SUMMARY, SYSTEM, Adapters, compactions, long_answer, talk_with
from test_hook import said_in_messages

import llm_compact
from llm_compact import automatic, display
from llm_compact.conversation import history_of

Run = Callable[..., Result]

FAR = ["--auto-threshold", "90k"]
thresholds = pytest.mark.parametrize("threshold", [[], FAR])


@pytest.fixture
def adapters(models: Plugin) -> Iterator[Adapters]:
    with registered(Adapters()) as plugin:
        yield plugin


def chat(run: Run, *lines: str, options: list[str]) -> Result:
    result = run("chat", *options, input="".join(f"{line}\n" for line in [*lines, "quit"]))
    assert result.exit_code == 0, result.output
    return result


# !compact


@thresholds
def test_compact_in_a_chat_compacts_at_once(
    threshold: list[str], models: Plugin, log: Log, run: Run
) -> None:
    source = talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]
    models.chatty.replies = ["At six."]

    result = chat(
        run,
        "!compact the tides of Ribe",
        "And today?",
        options=["-c", "--compact-model", "summer", *threshold],
    )

    assert len(models.summer.sent) == 1
    assert "the tides of Ribe" in models.summer.texts_sent()
    assert "!compact" not in models.summer.texts_sent()
    (prompt,) = models.chatty.sent
    said = said_in_messages(prompt.messages)
    assert said[0] == ("system", SYSTEM)
    assert said[2] == ("assistant", recorded(SUMMARY))
    assert said[-1] == ("user", "And today?")
    assert "!compact" not in str(said)
    (row,) = compactions(log)
    assert (row["trigger"], row["instructions"]) == ("manual", "the tides of Ribe")
    assert [turn["thread_id"] for turn in log.db["turns"].rows] == [
        *[source] * 6,
        *[row["conversation_id"]] * 2,
    ]
    assert said_in_messages(log.messages()) == [*said, ("assistant", "At six.")]
    (line,) = result.stderr.splitlines()
    assert line.startswith("Compacted ")
    assert f"--cid {source}" in line


def test_llm_logs_shows_the_compaction_and_then_the_turn(
    models: Plugin, log: Log, run: Run
) -> None:
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]
    models.chatty.replies = ["At six."]

    chat(run, "!compact", "And today?", options=["-c", "--compact-model", "summer"])
    shown = run("logs", "-c").stdout

    assert 0 < shown.index(SUMMARY) < shown.index("And today?") < shown.index("At six.")
    assert "!compact" not in shown


@thresholds
def test_compact_twice_in_a_row_keeps_what_is_to_be_kept(
    threshold: list[str], models: Plugin, log: Log, run: Run
) -> None:
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]

    result = chat(
        run,
        "!compact",
        "!compact",
        "And today?",
        options=["-c", "--compact-model", "extractive", "--compact-keep", "2x", *threshold],
    )

    done, nothing = result.stderr.splitlines()
    assert done.startswith("Compacted ")
    assert nothing.startswith("Nothing to ")
    assert len(compactions(log)) == 1
    assert len(models.chatty.sent) == 1


def test_compact_again_and_again_makes_generations(models: Plugin, log: Log, run: Run) -> None:
    source = talk_with("chatty", models.chatty, log)
    options = ["-c", "--compact-model", "extractive", "--auto-threshold", "off"]

    chat(run, *["!compact"] * 5, "And today?", options=options)

    rows = compactions(log)
    assert [row["generation"] for row in rows] == list(range(1, len(rows) + 1))
    places = [source, *(row["conversation_id"] for row in rows)]
    assert [row["source_conversation_id"] for row in rows] == places[:-1]
    assert [thread["forked_from"] for thread in log.threads()] == [None, *places[:-1]]
    (prompt,) = models.chatty.sent
    assert log.messages()[:-1] == prompt.messages
    assert history_of(prompt.messages).summary


@thresholds
@pytest.mark.parametrize("model_id", ["chatty", "old"])
def test_compact_as_the_first_message_uses_nothing_up(
    threshold: list[str], model_id: str, adapters: Adapters, models: Plugin, log: Log, run: Run
) -> None:
    script = models.chatty if model_id == "chatty" else adapters.seen.script

    result = chat(
        run, "!compact", "Hello", "Again", options=["-m", model_id, "-s", SYSTEM, *threshold]
    )

    assert result.stderr == "Nothing to compact: nothing was asked yet\n"
    assert [prompt.system for prompt in script.sent] == [SYSTEM, SYSTEM]
    first = [("system", SYSTEM), ("user", "Hello")]
    second = [*first, ("assistant", "Answer 1."), ("user", "Again")]
    assert [said_in_messages(prompt.messages) for prompt in script.sent] == [first, second]
    if model_id == "old":
        assert adapters.seen.requests == [first, second]
    assert len(list(log.db["turns"].rows)) == 2
    assert len(log.threads()) == 1


@thresholds
def test_a_command_that_came_to_nothing_is_not_shown_to_an_old_adapter(
    threshold: list[str], adapters: Adapters, log: Log, run: Run
) -> None:
    chat(run, "Hello", "!compact", "Again", options=["-m", "old", *threshold])

    hello, again = ("user", "Hello"), ("user", "Again")
    assert adapters.seen.requests == [[hello], [hello, ("assistant", "Answer 1."), again]]


@pytest.mark.parametrize("commands", [["!compact"], ["!compact", "!compact again"]])
def test_what_was_attached_to_a_command_goes_with_the_next_prompt(
    commands: list[str], models: Plugin, log: Log, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tides.txt").write_text("A table of tides.")

    chat(
        run,
        *commands,
        "When?",
        "And then?",
        options=["-m", "chatty", "-s", SYSTEM, "-f", str(tmp_path / "tides.txt")],
    )

    first, second = (said_in_messages(prompt.messages) for prompt in models.chatty.sent)
    assert first == [("system", SYSTEM), ("user", "A table of tides.\nWhen?")]
    assert second == [*first, ("assistant", "Answer 1."), ("user", "And then?")]
    assert models.chatty.sent[0].prompt == "A table of tides.\nWhen?"
    assert [row["content"] for row in log.db["fragments"].rows] == ["A table of tides."]
    assert log.db["part_fragments"].count == 1


def test_an_attachment_of_a_command_goes_with_the_next_prompt(models: Plugin, log: Log) -> None:
    from llm_compact import hook
    from llm_compact.policy import Logged, Policy

    conversation = llm.get_model("chatty").conversation()
    with hook.active(automatic.Session(Policy(is_chat=True), Logged())):
        assert conversation.prompt("!compact", attachments=[PICTURE]).text() == ""
        conversation.prompt("What is this?").text()

    (prompt,) = models.chatty.sent
    assert prompt.attachments == [PICTURE]
    assert [type(part) for part in prompt.messages[-1].parts][1:] == [AttachmentPart]


def test_compact_may_take_several_lines(models: Plugin, log: Log, run: Run) -> None:
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]

    chat(
        run,
        "!multi",
        "!compact",
        "the tides",
        "of Ribe",
        "!end",
        "And today?",
        options=["-c", "--compact-model", "summer"],
    )

    (row,) = compactions(log)
    assert row["instructions"] == "the tides\nof Ribe"
    assert len(models.chatty.sent) == 1


def test_a_word_that_only_begins_like_it_is_a_prompt(models: Plugin, log: Log, run: Run) -> None:
    chat(run, "!compactly", "Say !compact", options=["-m", "chatty"])
    run("-m", "chatty", "!compact", *FAR)

    assert [prompt.prompt for prompt in models.chatty.sent] == [
        "!compactly",
        "Say !compact",
        "!compact",
    ]


@pytest.mark.parametrize("error", [RuntimeError("unplugged"), None])
def test_a_command_that_fails_is_told_and_the_chat_goes_on(
    error: Exception | None, models: Plugin, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("plan")

    source = talk_with("chatty", models.chatty, log)
    if error is None:
        monkeypatch.setattr(automatic, "plan_compaction", broken)
    models.summer.replies = [Reply(raises=error)]

    result = chat(run, "!compact", "And today?", options=["-c", "--compact-model", "summer"])

    (line,) = result.stderr.splitlines()
    assert "unplugged" in line or "KeyError: 'plan'" in line
    assert len(models.chatty.sent[0].messages) == 14
    assert [thread["id"] for thread in log.threads()] == [source]


# What is left


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(display, "sys", SimpleNamespace(stdout=stream, stderr=stream))


def hints(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if "Context left" in line]


def test_a_terminal_shows_what_is_left_above_half_of_the_threshold(
    terminal: None, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [long_answer(n) for n in range(3)]

    result = chat(run, "One?", "Two?", "Three?", options=["-m", "chatty", "--auto-threshold=500"])

    assert [line[:30] for line in hints(result)] == ["Context left until compaction:"]
    left = int(hints(result)[0].split()[-1].rstrip("%"))
    assert 20 < left < 50


def test_there_is_no_hint_without_a_terminal_or_a_threshold(
    models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [long_answer(n) for n in range(3)]

    result = chat(run, "One?", "Two?", "Three?", options=["-m", "chatty", "--auto-threshold=500"])

    assert result.stderr == ""


@pytest.mark.parametrize("command", [["chat", "-m", "chatty"], ["-m", "chatty", *FAR[:1], "100"]])
def test_there_is_no_hint_where_nobody_asked_or_nothing_follows(
    command: list[str], terminal: None, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [long_answer(0)]

    result = run(*command, *([] if "chat" in command else ["One?"]), input="One?\nquit\n")

    assert hints(result) == []


def test_there_is_no_hint_between_the_rounds_of_a_tool_loop(
    terminal: None, models: Plugin, log: Log, run: Run
) -> None:
    call = Reply(LONG * 2, calls=[("c1", "lookup", {"key": "a"})], usage=(None, None))
    models.chatty.replies = [call, Reply("Done.", usage=(None, None))]

    result = chat(run, "One?", options=["-m", "chatty", "-T", "lookup", "--auto-threshold=300"])

    assert len(hints(result)) == 1


TERMINAL_PROGRAM = """
import llm
from llm.plugins import pm
from llm.cli import cli

class Chatty(llm.Model):
    model_id = "chatty"
    def execute(self, prompt, stream, response, conversation):
        yield "word " * 80

class Plugin:
    @llm.hookimpl
    def register_models(self, register):
        register(Chatty())

pm.register(Plugin())
cli()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="There is no pty")
def test_the_hint_stands_on_a_line_of_its_own(user_path: Path) -> None:
    import pty

    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL_PROGRAM, "chat", "-m", "chatty", "--auto-threshold", "120"],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "LLM_USER_PATH": str(user_path)},
    )
    os.close(terminal)
    process.communicate(b"Hello\nquit\n", timeout=60)
    said = b""
    # Linux reports the end of a terminal as an error.
    try:
        while chunk := os.read(controller, 4096):
            said += chunk
    except OSError:
        pass
    finally:
        os.close(controller)

    lines = [line.strip() for line in said.decode().splitlines()]
    hint = next(at for at, line in enumerate(lines) if "Context left" in line)
    assert lines[hint - 1].endswith("word word")
    assert "% " not in lines[hint].split(":")[1].strip()
    assert lines[hint + 1].startswith(">")


# auto()


def long_conversation(conversation: Any, models: Plugin, turns: int = 12) -> list[int]:
    """Ask so often, and return how many messages were sent each time."""
    models.chatty.replies = [long_answer(n) for n in range(turns)]
    models.chatty.sent.clear()
    for n in range(turns):
        conversation.prompt(f"Question {n}?").text()
    return [len(prompt.messages) for prompt in models.chatty.sent]


async def long_async_conversation(conversation: Any, models: Plugin, turns: int = 12) -> list[int]:
    """The same with an async model, among others who do so."""
    sizes = []
    for n in range(turns):
        models.chatty.replies.append(Reply("At six.", usage=(None, None)))
        response = conversation.prompt(f"Question {n}? " + LONG)
        await response.text()
        sizes.append(len(response.prompt.messages))
    return sizes


def test_a_block_compacts_in_memory(models: Plugin, log: Log) -> None:
    conversation = llm.get_model("chatty").conversation()
    id = conversation.id

    with llm_compact.auto("400", model="extractive"):
        sizes = long_conversation(conversation, models)
    after = long_conversation(conversation, models, 3)

    assert max(sizes) < 12
    assert history_of(conversation.responses[-1].prompt.messages).summary
    assert after == [sizes[-1] + 2 * n for n in (1, 2, 3)]
    assert conversation.id == id
    assert not log.path.exists()


def test_a_block_with_a_database_stores(models: Plugin, tmp_path: Path) -> None:
    log = Log(tmp_path / "mine" / "talks.db")
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto("10m", model="extractive", database=log.path):
        long_conversation(conversation, models)

    assert conversation.id == compactions(log)[-1]["conversation_id"]
    assert log.store.verify() == []
    assert log.messages(conversation.id)


def test_tasks_in_one_block_do_not_mix(models: Plugin) -> None:
    async def all_of_them() -> list[Any]:
        conversations = [llm.get_async_model("chatty").conversation() for _ in range(3)]
        with llm_compact.auto("400", model="extractive"):
            talks = [
                long_async_conversation(each, models, 6 + n) for n, each in enumerate(conversations)
            ]
            sizes = await asyncio.gather(*talks)
        for conversation in conversations:
            chain = conversation.responses[-1].prompt.messages
            assert len(history_of(chain).system) == 0
            assert history_of(chain).summary
        return sizes

    sizes = asyncio.run(all_of_them())

    assert [len(each) for each in sizes] == [6, 7, 8]
    assert all(max(each) < 10 for each in sizes)


def test_the_inner_of_two_blocks_counts(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto("400", model="extractive"):
        with llm_compact.auto("90k", model="extractive"):
            inner = long_conversation(conversation, models, 6)
        outer = long_conversation(conversation, models, 1)

    assert inner == [1, 3, 5, 7, 9, 11]
    assert outer[0] < 11


def test_off_is_a_threshold_too(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto("400", model="extractive"), llm_compact.auto("off"):
        assert long_conversation(conversation, models, 6) == [1, 3, 5, 7, 9, 11]


def test_a_number_is_tokens(models: Plugin) -> None:
    models.chatty.replies = [long_answer(n) for n in range(12)]
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto(threshold=600, model="extractive", keep=1, window=4_000):
        for n in range(12):
            conversation.prompt(f"And in port {n}?").text()

    assert len(models.chatty.sent[-1].messages) < 12


@pytest.mark.parametrize(
    "sizes",
    [
        {"threshold": "much"},
        {"threshold": "70"},
        {"threshold": "120%"},
        {"threshold": "400", "keep": "some"},
        {"threshold": "400", "max_summary": "-1"},
        {"threshold": "400", "window": "wide"},
    ],
)
def test_a_bad_size_is_a_value_error(sizes: dict[str, str]) -> None:
    with pytest.raises(ValueError), llm_compact.auto(**sizes):
        pytest.fail("the block must not begin")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_percentage_needs_a_window_at_the_first_prompt(is_async: bool, models: Plugin) -> None:
    model: Any = llm.get_async_model("chatty") if is_async else llm.get_model("chatty")

    with llm_compact.auto("70%"):
        response = model.conversation().prompt("Hi")
        with pytest.raises(llm_compact.CompactionError, match="No context window known"):
            asyncio.run(response.text()) if is_async else response.text()

    assert models.chatty.sent == []
    with llm_compact.auto("70%", window="600", model="extractive"):
        assert max(long_conversation(llm.get_model("chatty").conversation(), models)) < 12


def test_what_happens_is_logged(models: Plugin, caplog: pytest.LogCaptureFixture) -> None:
    models.summer.replies = [SUMMARY]

    with caplog.at_level(logging.INFO, "llm_compact"), llm_compact.auto("400", model="summer"):
        long_conversation(llm.get_model("chatty").conversation(), models, 6)

    (record,) = [r for r in caplog.records if r.name == "llm_compact"]
    assert record.levelname == "INFO"
    assert record.getMessage().startswith("Compacted ")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_that_is_abandoned_leaves_the_next_one_alone(
    is_async: bool, models: Plugin
) -> None:
    async def abandon(answer: AsyncIterator[str]) -> None:
        async for _ in answer:
            break

    conversation: Any
    with llm_compact.auto("400", model="extractive"):
        if is_async:
            conversation = llm.get_async_model("chatty").conversation()
            asyncio.run(abandon(conversation.prompt("Hello " + LONG)))
            sizes = asyncio.run(long_async_conversation(conversation, models, 8))
        else:
            conversation = llm.get_model("chatty").conversation()
            models.chatty.replies = [long_answer(0)]
            next(iter(conversation.prompt("Hello")))
            sizes = long_conversation(conversation, models, 8)

    assert max(sizes) < 12
    assert history_of(conversation.responses[-1].prompt.messages).summary


def test_no_conversation_outlives_its_use(models: Plugin) -> None:
    alive = []

    with llm_compact.auto("400", model="extractive"):
        for _ in range(3):
            conversation = llm.get_model("chatty").conversation()
            long_conversation(conversation, models, 6)
            alive.append(weakref.ref(conversation))
            del conversation
            models.chatty.sent.clear()
            gc.collect()
            assert [each() for each in alive] == [None] * len(alive)
