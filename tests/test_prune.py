"""Conversations whose old tool output is shortened: in the log, under llm -c, and by themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import Log, Talk
from conversations import PICTURE
from llm.parts import Message, ToolResultPart
from oracle import count_tokens, key, violations
from scripted import Plugin, Reply, registered
from test_hook import OldAdapters, said_in_messages

import llm_compact
from llm_compact import hook
from llm_compact.conversation import history_of
from llm_compact.log import open_log
from llm_compact.placeholder import pruned_hashes
from llm_compact.source import read_source

Run = Callable[..., Result]

LINES = 60


def tide_log(place: str) -> str:
    "Read the log of a tide gauge"
    lines = [f"{place} {n:02}:00 the gauge shows {n}.{n % 7} m at pole {n}" for n in range(LINES)]
    lines[LINES // 2] = f"/var/gauges/{place.lower()}.db holds the zero point of {place}"
    return "\n".join(lines)


def hidden(place: str) -> str:
    """What only the middle of a log tells."""
    return f"/var/gauges/{place.lower()}.db"


class Gauges:
    __name__ = "gauges"

    @llm.hookimpl
    def register_tools(self, register: Any) -> None:
        register(tide_log)


@pytest.fixture(autouse=True)
def gauges() -> Iterator[None]:
    with registered(Gauges()):
        yield


@pytest.fixture
def old() -> Iterator[OldAdapters]:
    with registered(OldAdapters()) as plugin:
        yield plugin


def exchange(place: str, *, answer: str = "") -> tuple[str, list[Reply | str]]:
    reply = Reply(calls=[(f"call-{place}", "tide_log", {"place": place})])
    return f"What about {place}?", [reply, answer or f"All is well in {place}."]


PLACES = ["Esbjerg", "Nuuk", "Ribe", "Thyboron", "Skagen"]


@pytest.fixture
def agent_talk(talk: Talk) -> str:
    """Five exchanges, each with a large tool result. The conversation's id."""
    return talk(
        [exchange(place) for place in PLACES],
        system="You know the tides.",
        tools=[llm.get_tools()["tide_log"]],
    )


def outputs(messages: Sequence[Message]) -> list[str]:
    return [p.output for m in messages for p in m.parts if isinstance(p, ToolResultPart)]


def row(log: Log) -> dict[str, Any]:
    return list(log.db["compactions"].rows_where(order_by="turn_id"))[-1]


# By hand


def test_old_tool_output_is_shortened_and_no_model_is_called(
    agent_talk: str, run: Run, log: Log, models: Plugin
) -> None:
    before = log.messages(agent_talk)

    result = run("compact", "-c", "--prune-tools")

    assert (result.exit_code, result.stdout) == (0, "")
    assert models.chatty.sent == models.summer.sent == []
    after = log.messages()
    assert log.messages(agent_talk) == before
    assert log.newest()["forked_from"] == agent_talk
    assert violations(after) == set()
    changed = [m for m, old in zip(after, before, strict=True) if key(m) != key(old)]
    assert [m.role for m in changed] == ["tool"] * 3
    assert [hidden(place) in "".join(outputs(after)) for place in PLACES] == [0, 0, 0, 1, 1]
    made = row(log)
    assert (made["summarizer"], made["calls"], made["trigger"]) == ("prune-tools", 0, "manual")
    assert (made["generation"], made["messages_summarized"]) == (1, 3)
    assert made["tokens_before"] - made["tokens_after"] == count_tokens(before) - count_tokens(
        after
    )
    assert f"{made['tokens_before']:,} -> {made['tokens_after']:,} tokens" in result.stderr
    assert "(tool output shortened in 3 messages) with prune-tools" in result.stderr
    assert f"--cid {agent_talk}" in result.stderr


def test_the_pruned_chain_in_memory_is_the_one_in_the_log(
    agent_talk: str, run: Run, log: Log
) -> None:
    run("compact", "-c", "--prune-tools")
    messages = log.db["messages"].count

    assert log.store.ensure_chain(log.messages()) == log.newest()["tip_message_hash"]
    assert log.db["messages"].count == messages


def test_the_conversation_goes_on_with_placeholders_and_tools(
    agent_talk: str, run: Run, log: Log, models: Plugin
) -> None:
    run("compact", "-c", "--prune-tools")
    chain = log.messages()

    assert run("-c", "And now?").exit_code == 0

    assert models.chatty.sent[-1].messages[:-1] == chain
    assert [tool.name for tool in models.chatty.sent[-1].tools] == ["tide_log"]
    assert log.messages()[: len(chain)] == chain


def test_llm_logs_shows_where_a_pruned_conversation_goes_on(agent_talk: str, run: Run) -> None:
    run("compact", "-c", "--prune-tools")

    shown = run("logs", "-c").output

    assert "Model: **chatty** (resolved: **prune-tools**)" in shown
    assert "All is well in Skagen." in shown


def test_a_pruning_is_listed_and_shown(agent_talk: str, run: Run, log: Log) -> None:
    run("compact", "-c", "--prune-tools")

    assert "prune-tools  from" in run("compact", "list").stdout
    shown = run("compact", "show")
    assert shown.exit_code == 0
    assert "prune-tools, 0 calls" in shown.stdout and "All is well" not in shown.stdout
    context = run("compact", "show", "--context").stdout
    assert context.count("the original is in the log") == 3
    assert json.loads(run("compact", "show", "--json").stdout)["summary"] == ""


def test_a_pin_goes_into_the_next_summary(agent_talk: str, run: Run, models: Plugin) -> None:
    run("compact", "-c", "--prune-tools", "--pin", "The boat leaves at six")
    models.summer.replies = ["The gauges are well."]

    done = run("compact", "-c", "-m", "summer")

    assert "- The boat leaves at six" in done.stdout


def test_adapters_that_read_responses_get_the_whole_pruned_chain(
    agent_talk: str, run: Run, log: Log, old: OldAdapters
) -> None:
    assert not hook.is_compacted(log.messages())

    run("compact", "-c", "--prune-tools")

    assert hook.is_compacted(log.messages())
    log.db.execute("update turns set model = 'old'")
    log.db.conn.commit()
    assert run("-c", "And now?").exit_code == 0
    assert old.seen.requests[-1] == said_in_messages(old.seen.chains[-1])
    assert len(old.seen.chains[-1]) == len(log.messages()) - 1


def test_a_chain_that_ends_in_a_tool_loop_keeps_its_open_round(
    talk: Talk, run: Run, log: Log
) -> None:
    id = talk([exchange(place) for place in PLACES], tools=[llm.get_tools()["tide_log"]])
    chain = log.messages(id)
    log.db["threads"].update(id, {"tip_message_hash": log.store.ensure_chain(chain[:-1])})

    assert run("compact", "--cid", id, "--prune-tools").exit_code == 0

    assert log.messages()[-1] == chain[-2]
    assert violations(log.messages()) <= violations(chain[:-1])


def test_nothing_to_prune_is_told_in_one_line(long_talk: str, run: Run, log: Log) -> None:
    before = log.rows()

    result = run("compact", "-c", "--prune-tools")

    assert result.exit_code == 3
    assert result.stderr.startswith("Error: Nothing to prune: no tool result of more than 200")
    assert result.stderr.count("\n") == 1
    assert log.rows() == before


def test_a_pruned_conversation_is_not_pruned_again(agent_talk: str, run: Run, log: Log) -> None:
    run("compact", "-c", "--prune-tools")

    assert run("compact", "-c", "--prune-tools").exit_code == 3
    assert run("compact", "-c", "--prune-tools", "--keep", "1x").exit_code == 0
    assert row(log)["generation"] == 2


def test_keep_says_what_is_old(agent_talk: str, run: Run, log: Log) -> None:
    assert run("compact", "-c", "--prune-tools", "--keep", "3x").exit_code == 0

    assert row(log)["messages_summarized"] == 2


def test_the_same_point_is_pruned_once(agent_talk: str, run: Run) -> None:
    again = ("compact", "--cid", agent_talk, "--prune-tools")
    run(*again)

    assert "Already compacted as" in run(*again).stderr
    assert run(*again, "--again").exit_code == 0


def test_a_dry_run_tells_the_gain_and_writes_nothing(agent_talk: str, run: Run, log: Log) -> None:
    before = log.rows()

    shown = run("compact", "-c", "--prune-tools", "--dry-run").stdout
    plan = json.loads(run("compact", "-c", "--prune-tools", "--dry-run", "--json").stdout)

    assert log.rows() == before
    assert "(tool output shortened in 3 messages)" in shown
    made = json.loads(run("compact", "-c", "--prune-tools", "--json").stdout)
    assert plan["calls"] == made["usage"]["calls"] == 0
    same = ["summarizer", "generation", "tokens_before", "tokens_after", "messages_summarized"]
    assert [plan[name] for name in same] == [made[name] for name in same]
    assert (made["summary"], made["summary_tokens"]) == ("", 0)


@pytest.mark.parametrize(
    "option",
    [
        ["-m", "summer"],
        ["--max-summary", "1k"],
        ["-t", "minutes"],
        ["-o", "temperature", "0"],
        ["--focus", "tides"],
        ["the tides"],
        ["--from-original"],
        ["--check"],
        ["-u"],
    ],
)
def test_what_is_about_a_summary_does_not_go_with_it(
    option: list[str], agent_talk: str, run: Run, log: Log
) -> None:
    before = log.rows()

    result = run("compact", "-c", "--prune-tools", *option)

    assert result.exit_code == 2
    assert "--prune-tools writes no summary: leave out" in result.stderr
    assert log.rows() == before


def test_a_stored_model_does_not_matter(
    agent_talk: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("compact", "settings", "set", "model", "unknown")
    monkeypatch.setenv("LLM_COMPACT_MODEL", "unknown")

    assert run("compact", "-c", "--prune-tools").exit_code == 0


def test_python_prunes_too(agent_talk: str, log: Log, models: Plugin) -> None:
    compaction = llm_compact.compact(prune_tools=True)

    assert (compaction.id, compaction.summarizer) == (log.newest()["id"], "prune-tools")
    assert models.chatty.sent == []


def test_attachments_of_a_pruned_conversation_are_stored_once(
    talk: Talk, run: Run, log: Log
) -> None:
    talk(
        [exchange(place) for place in PLACES],
        tools=[llm.get_tools()["tide_log"]],
        attachments=[PICTURE],
        fragments=["A long fragment about tides. " * 40],
    )

    assert run("compact", "-c", "--prune-tools").exit_code == 0

    assert log.db["attachments"].count == 1
    stored = [part["payload"] or part["text"] for part in log.db["parts"].rows]
    assert not any("A long fragment" in text for text in stored)


# A summary afterwards


def test_a_summarizer_gets_the_original_output(
    agent_talk: str, run: Run, log: Log, models: Plugin
) -> None:
    run("compact", "-c", "--prune-tools")
    models.summer.replies = ["The gauges are well."]

    assert run("compact", "-c", "-m", "summer", "--keep", "1x").exit_code == 0

    sent = models.summer.texts_sent()
    assert [hidden(place) in sent for place in PLACES] == [1, 1, 1, 1, 0]
    assert "left out by llm-compact" not in sent
    assert row(log)["generation"] == 2
    with open_log(log.path) as db:
        originals = read_source(db, None).originals
    said = log.messages(agent_talk)[1:]
    assert list(map(key, originals)) == list(map(key, said))


def test_originals_are_found_through_prunings_and_summaries(
    agent_talk: str, run: Run, log: Log, models: Plugin
) -> None:
    said = list(map(key, log.messages(agent_talk)[1:]))
    for _ in range(2):
        run("compact", "-c", "--prune-tools", "--keep", "3x")
        run("compact", "-c", "--prune-tools", "--keep", "2x")
        models.summer.replies = ["The gauges are well."]
        assert run("compact", "-c", "-m", "summer", "--keep", "2x").exit_code == 0
        for place in ("Thy", "Mors"):
            models.chatty.replies = [*exchange(place)[1]]
            run("-c", f"What about {place}?", "--td")
            said += map(key, log.messages()[-4:])

    with open_log(log.path) as db:
        source = read_source(db, None)

    assert list(map(key, source.originals)) == said
    assert row(log)["generation"] == 6


def test_extractive_sees_the_original_output(agent_talk: str, run: Run) -> None:
    run("compact", "-c", "--prune-tools")

    done = run("compact", "-c", "-m", "extractive", "--keep", "1x", "--max-summary", "600")

    # Exact values from the middle of the logs.
    assert any(f"{n}.{n % 7} m" in done.stdout for n in range(20, 40))
    assert "left out" not in done.stdout


def test_a_copied_conversation_without_originals_is_summarized_as_it_is(
    agent_talk: str, run: Run, log: Log, models: Plugin
) -> None:
    run("compact", "-c", "--prune-tools")
    chain = log.messages()
    # Another log, to which only this conversation was copied.
    other = log.path.with_name("other.db")
    log.path.rename(other)
    tip = log.store.ensure_chain(chain)
    id = log.store.create_thread(tip=tip)
    log.db["turns"].insert({"id": "01a", "thread_id": id, "model": "chatty"})
    models.summer.replies = ["The gauges are well."]

    assert run("compact", "-c", "-m", "summer").exit_code == 0

    assert "left out by llm-compact" in models.summer.texts_sent()


# By itself


def hold(models: Plugin, conversation: Any, exchanges: int, *, start: int = 0) -> None:
    for n in range(start, start + exchanges):
        prompt, models.chatty.replies = exchange(f"Berth{n}")
        conversation.chain(prompt, tools=[tide_log]).text()


def requests(models: Plugin) -> list[list[Message]]:
    return [prompt.messages for prompt in models.chatty.sent]


def test_pruning_keeps_a_conversation_below_its_threshold_without_a_model(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto("6k", model="summer"):
        hold(models, conversation, 8)

    assert models.summer.sent == []
    assert max(map(count_tokens, requests(models))) <= 6_000
    last = requests(models)[-1]
    assert pruned_hashes(last) and violations(last) == set()
    # Every request is there, word for word.
    assert [f"What about Berth{n}?" in str(last) for n in range(8)] == [True] * 8
    assert "the original is in the log" not in str(last)


def test_what_is_pruned_leaves_less_than_a_compaction_may_leave(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto("6k", model="summer"):
        hold(models, conversation, 8)

    sizes = list(map(count_tokens, requests(models)))
    falls = [b for a, b in pairwise(sizes) if b < a]
    # The request that is compacted has grown by a round since the last one was sent.
    assert falls and max(falls) <= 0.6 * 6_000


def test_a_summary_comes_when_pruning_gains_too_little(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()
    models.summer.replies = [f"Summary {n}: the gauges are well." for n in range(9)]

    with llm_compact.auto("4k", model="summer"):
        hold(models, conversation, 30)

    assert 0 < len(models.summer.sent) < 6
    assert max(map(count_tokens, requests(models))) <= 4_000
    assert history_of(requests(models)[-1]).summary is not None
    # The summarizer is shown the output itself, which only this process remembers.
    sent = "".join(prompt.prompt for prompt in models.summer.sent)
    summarized = sum(hidden(f"Berth{n}") in sent for n in range(30))
    assert summarized >= 20 and "left out by llm-compact" not in sent


def test_async_conversations_are_pruned_too(models: Plugin) -> None:
    async def held() -> None:
        conversation = llm.get_async_model("chatty").conversation()
        for n in range(8):
            prompt, models.chatty.replies = exchange(f"Berth{n}")
            await conversation.chain(prompt, tools=[tide_log]).text()

    with llm_compact.auto("6k", model="summer"):
        asyncio.run(held())

    assert models.summer.sent == [] and pruned_hashes(requests(models)[-1])
    assert max(map(count_tokens, requests(models))) <= 6_000


def test_the_command_line_prunes_first_and_stores_it(log: Log, run: Run, models: Plugin) -> None:
    for n in range(12):
        prompt, models.chatty.replies = exchange(f"Berth{n}")
        new = ["-T", "tide_log", "-m", "chatty"] if n == 0 else ["-c"]
        done = run(*new, prompt, "--auto-threshold", "5k", "--compact-model", "summer")
        assert done.exit_code == 0
        if "Compacted" in done.stderr:
            break

    assert "with prune-tools. Original: llm -c --cid" in done.stderr
    assert models.summer.sent == []
    made = row(log)
    assert (made["trigger"], made["calls"]) == ("auto", 0)
    assert log.newest()["id"] == made["conversation_id"] != made["source_conversation_id"]
    chain = log.messages()
    assert "the original is in the log" in str(chain) and violations(chain) == set()
    assert chain[: len(requests(models)[-1])] == requests(models)[-1]
    with open_log(log.path) as db:
        originals = "".join(outputs(read_source(db, None).originals))
    assert [hidden(f"Berth{i}") in originals for i in range(n + 1)] == [True] * (n + 1)


def test_a_loop_that_is_pruned_twice_makes_one_conversation(
    log: Log, run: Run, models: Plugin
) -> None:
    models.chatty.replies = [*exchange("Berth0")[1]]
    run("-m", "chatty", "-T", "tide_log", "Hello")
    models.chatty.replies = [exchange(f"Berth{n}")[1][0] for n in range(1, 10)]

    done = run("-c", "Read them all", "--auto-threshold", "5k", "--chain-limit", "0")

    assert done.stderr.count("with prune-tools") >= 2
    assert len(log.threads()) == 2
    assert log.messages()[:-1] == requests(models)[-1]
    with open_log(log.path) as db:
        originals = "".join(outputs(read_source(db, None).originals))
    assert [hidden(f"Berth{n}") in originals for n in range(10)] == [True] * 10


def test_an_overflow_goes_straight_to_a_summary(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()
    hold(models, conversation, 6)
    too_long = Reply(raises=ValueError("maximum context length is 4000 tokens"))
    models.chatty.replies = [too_long, "Well."]
    models.summer.replies = ["The gauges are well."]

    with llm_compact.auto("100k", model="summer"):
        assert conversation.prompt("And now?").text() == "Well."

    assert len(models.summer.sent) == 1
    assert pruned_hashes(requests(models)[-1]) == []


def test_a_threshold_in_exchanges_is_not_met_by_pruning(models: Plugin) -> None:
    conversation = llm.get_model("chatty").conversation()
    models.summer.replies = ["The gauges are well."]

    with llm_compact.auto("4x", model="summer"):
        hold(models, conversation, 5)

    assert len(models.summer.sent) == 1
