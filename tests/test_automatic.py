"""A conversation that compacts itself: what is sent, what is stored, where it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log
from conversations import PICTURE, conversations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llm.parts import Message, ReasoningPart, ToolCallPart
from old_log import OldLog
from oracle import count_tokens, key, requests_of, violations
from scripted import Plugin, Reply, Script, registered

import llm_compact
from llm_compact import meter as meter_module
from llm_compact.conversation import history_of, text_of
from llm_compact.log import open_log
from llm_compact.placeholder import PRUNE_TOOLS, pruned_hashes
from llm_compact.source import Source, read_known, read_source
from llm_compact.tokens import UNKNOWN, Unit

Run = Callable[..., Result]

THRESHOLD = 2_000
LEAST_SUMMARY = 300
"A summary may always take so much, or a quarter of the threshold."


class Provider(Script):
    """A provider that counts what it is sent, by its own tokens, and answers by a rule."""

    def __init__(
        self,
        answer: Callable[[int], Reply | str],
        *,
        factor: float = 1.0,
        overhead: int = 0,
        reports: bool = True,
    ) -> None:
        super().__init__()
        self.answer, self.factor, self.overhead, self.reports = answer, factor, overhead, reports
        self.requests: list[list[Message]] = []
        self.sizes: list[int] = []
        "What each request weighed."

    def next(self, prompt: llm.Prompt, key: str | None = None) -> Reply:
        self.sent.append(prompt)
        self.requests.append(prompt.messages)
        self.sizes.append(round(self.factor * count_tokens(prompt.messages)) + self.overhead)
        reply = self.answer(len(self.requests) - 1)
        reply = Reply(reply) if isinstance(reply, str) else reply
        said = round(
            self.factor * (count_tokens([llm.assistant(reply.text)]) + 20 * len(reply.calls))
        )
        reply.usage = (self.sizes[-1], said) if self.reports else (None, None)
        return reply


def tides(n: int) -> str:
    return f"On day {n} high water was at 0{n % 10}:15 with 1.{n} m at berth {n}. " * 3


def talk_of_tides(models: Plugin) -> tuple[Provider, llm.Conversation]:
    """A conversation with a model that tells the tides, and what it was sent."""
    models.chatty = provider = Provider(tides)
    return provider, llm.get_model("chatty").conversation()


def digs(rounds: int, *, parallel: int = 1, reasoning: str = "") -> Callable[[int], Reply | str]:
    """So many rounds of tool calls, then an answer."""

    def answer(n: int) -> Reply | str:
        if n >= rounds:
            return "All dug up."
        calls = [(f"call-{n}-{i}", "dig", {"place": f"{n}.{i}"}) for i in range(parallel)]
        return Reply(calls=calls, reasoning=reasoning)

    return answer


def dig(place: str) -> str:
    "Dig somewhere"
    return f"Layer {place}: clay, sand and /var/finds/{place}.json with 3 shards.\n" * 30


class Tools:
    __name__ = "digging"

    @llm.hookimpl
    def register_tools(self, register: Any) -> None:
        register(dig)


@pytest.fixture
def digging() -> Iterator[None]:
    with registered(Tools()):
        yield


def shortest(request: Sequence[Message]) -> int:
    """What of a request can't be left out: the system prompt, and all from the last round on."""
    system = [message for message in request if message.role == "system"]
    body = [message for message in request if message.role != "system"]
    newest = max(i for i, m in enumerate(body) if any(m is r for r in requests_of(body)))
    rounds = [i for i, m in enumerate(body) if m.role == "assistant" and i > newest]
    return count_tokens([*system, body[newest], *(body[rounds[-1] :] if rounds else [])])


# Requests


@pytest.mark.parametrize(
    ("factor", "overhead", "reports"),
    [(1.0, 0, False), (1.0, 0, True), (1.3, 250, True), (0.8, 0, True)],
)
def test_a_chat_of_any_length_saw_tooths_below_its_threshold(
    factor: float, overhead: int, reports: bool, models: Plugin
) -> None:
    provider = Provider(tides, factor=factor, overhead=overhead, reports=reports)
    models.chatty = provider
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto(threshold="2k", model="extractive"):
        for day in range(120):
            system = "You know the tides." if day == 0 else None
            conversation.prompt(f"When was high water on day {day}?", system=system).text()

    sizes = provider.sizes
    falls = [after for before, after in pairwise(sizes) if after < before]
    assert max(sizes) <= THRESHOLD
    assert len(falls) >= 5
    assert max(falls) < 0.6 * THRESHOLD
    assert [violations(request) for request in provider.requests] == [set()] * 120
    assert [text_of(request[-1]) for request in provider.requests] == [
        f"When was high water on day {day}?" for day in range(120)
    ]


def test_a_check_costs_the_same_at_the_thousandth_turn(
    models: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(lambda n: f"On day {n} it came at six.")
    models.chatty = provider
    conversation = llm.get_model("chatty").conversation()
    counted = [0]

    def message_tokens(message: Message) -> int:
        counted[-1] += 1
        return count_tokens([message])

    monkeypatch.setattr(meter_module, "message_tokens", message_tokens)
    with llm_compact.auto(threshold="2k", model="extractive"):
        for day in range(1_000):
            conversation.prompt(f"And on day {day}?").text()
            counted.append(0)

    sizes = provider.sizes
    falls = [turn for turn in range(1, 1_000) if sizes[turn] < sizes[turn - 1]]
    assert max(sizes) <= THRESHOLD
    assert max(sizes[turn] for turn in falls) < 0.6 * THRESHOLD
    # The answer and the next question; after a compaction, what it left.
    assert max(counted[turn] for turn in range(1_000) if turn not in falls) <= 2
    assert max(counted) <= max(map(len, provider.requests)) + 2
    assert counted[-100:].count(2) > 80


@pytest.mark.parametrize(
    ("threshold", "unit", "limit"), [("20m", "messages", 20), ("8x", "exchanges", 8)]
)
def test_a_threshold_may_be_messages_or_exchanges(
    threshold: str, unit: Unit, limit: int, models: Plugin
) -> None:
    provider, conversation = talk_of_tides(models)

    with llm_compact.auto(threshold=threshold, model="extractive"):
        for day in range(60):
            conversation.prompt(f"And on day {day}?", system="Be brief").text()

    def size(request: list[Message]) -> int:
        body = history_of(request).body
        return len(request) - 1 if unit == "messages" else len(requests_of(body))

    sizes = list(map(size, provider.requests))
    falls = [after for before, after in pairwise(sizes) if after < before]
    assert limit - 1 <= max(sizes) <= limit
    assert len(falls) >= 4
    assert max(falls) < 0.6 * limit


def test_a_threshold_may_be_a_share_of_the_window(models: Plugin) -> None:
    provider, conversation = talk_of_tides(models)

    with llm_compact.auto(threshold="50%", window="4k", model="extractive"):
        for day in range(60):
            conversation.prompt(f"And on day {day}?").text()

    assert 0.9 * THRESHOLD < max(provider.sizes) <= THRESHOLD


def test_room_for_the_answer_is_left_in_the_window(models: Plugin) -> None:
    provider, conversation = talk_of_tides(models)

    with llm_compact.auto(threshold="100%", window="2k", model="extractive"):
        for day in range(40):
            conversation.prompt(f"And on day {day}?", max_tokens=500).text()

    assert 1_300 < max(provider.sizes) <= 1_500


def test_what_is_to_be_kept_yields_to_the_threshold(models: Plugin) -> None:
    provider, conversation = talk_of_tides(models)

    with llm_compact.auto(threshold="2k", keep="100x", model="extractive"):
        for day in range(60):
            conversation.prompt(f"And on day {day}?").text()

    falls = [after for before, after in pairwise(provider.sizes) if after < before]
    assert max(provider.sizes) <= THRESHOLD
    assert falls and max(falls) < 0.6 * THRESHOLD


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    past=conversations(open_end=False),
    later=conversations(open_end=False),
    threshold=st.sampled_from(["300", "600", "1500", "4m", "9m", "1x", "3x"]),
    reports=st.booleans(),
)
def test_each_request_is_valid_whole_and_below_the_threshold_if_it_can_be(
    past: list[Message],
    later: list[Message],
    threshold: str,
    reports: bool,
    models: Plugin,
) -> None:
    provider = Provider(lambda n: f"It came at {n}.", reports=reports)
    models.chatty = provider
    conversation = llm.get_model("chatty").conversation()
    conversation.loaded_messages = past
    questions = [text_of(m) or "What is this?" for m in later if m.role == "user"]

    with llm_compact.auto(threshold=threshold, model="extractive"):
        for question in questions:
            conversation.prompt(question).text()

    assert [text_of(request[-1]) for request in provider.requests] == questions
    for request in provider.requests:
        assert violations(request) == set()
    if threshold.isdigit():
        limit = int(threshold)
        for request, size in zip(provider.requests, provider.sizes, strict=True):
            fixed = shortest(request) + min(LEAST_SUMMARY, limit // 4) + 60
            # Where no compaction can get it below, one is made now and then and not each time.
            assert size <= (limit if fixed <= limit else fixed + 0.4 * limit)


# Tool loops


@pytest.mark.parametrize(
    ("reports", "parallel", "is_async"),
    [(False, 1, False), (True, 1, True), (True, 3, False), (False, 3, True)],
)
def test_a_long_tool_loop_goes_on_below_its_threshold(
    reports: bool, parallel: int, is_async: bool, models: Plugin, log: Log
) -> None:
    provider = Provider(digs(60, parallel=parallel), overhead=40, reports=reports)
    models.chatty = provider
    kind = llm.get_async_model if is_async else llm.get_model
    conversation = kind("chatty").conversation()
    request = "Dig everywhere, and never in the churchyard: " + "the north bank, " * 50

    with llm_compact.auto(threshold="8k", model="extractive", database=log.path):
        chain = conversation.chain(request, system="You dig.", tools=[dig], chain_limit=0)
        text = asyncio.run(chain.text()) if is_async else chain.text()
    chain.log_to_db(log.db)

    assert text == "All dug up."
    assert len(provider.requests) == 61
    assert max(provider.sizes) <= 8_000
    assert all(request in map(text_of, sent) for sent in provider.requests)
    assert [violations(sent) for sent in provider.requests] == [set()] * 61
    falls = [after for before, after in pairwise(provider.sizes) if after < before]
    assert len(falls) >= 5 and max(falls) < 0.6 * 8_000
    assert [thread["id"] for thread in log.threads()] == [conversation.id]
    assert_all_is_told(log, conversation.id, provider, rounds=60)


@pytest.mark.parametrize("options", [[], ["--async"]])
def test_a_long_tool_loop_of_llm_prompt_makes_one_new_conversation(
    options: list[str], digging: None, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    provider = Provider(digs(25))
    models.chatty = provider
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]

    result = run("-c", "Dig everywhere", "-T", "dig", *flags, *options)

    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["All", "dug", "up."]
    assert result.stderr.count("Compacted") == len(compactions(log)) >= 3
    assert max(provider.sizes) <= 4_000
    old, new = log.threads()
    assert (old["id"], new["forked_from"]) == (long_talk, long_talk)
    assert len(log.messages(long_talk)) == 13
    assert_all_is_told(log, new["id"], provider, rounds=25, before=log.messages(long_talk))


def test_a_tool_loop_in_a_chat_makes_one_new_conversation(
    digging: None, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    provider = Provider(digs(15))
    models.chatty = provider
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]

    result = run("chat", "-c", "-T", "dig", *flags, input="Dig everywhere\nThank you\nquit\n")

    assert result.exit_code == 0, result.output
    assert len(compactions(log)) >= 2
    assert len(log.threads()) == 2
    assert text_of(log.messages()[-2]) == "Thank you"
    assert [violations(sent) for sent in provider.requests] == [set()] * 17


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_loop_ends_at_its_limit_as_it_would_have(
    is_compacted: bool, digging: None, models: Plugin, log: Log, run: Run
) -> None:
    provider = Provider(digs(60))
    models.chatty = provider
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive"] if is_compacted else []

    result = run("-m", "chatty", "Dig everywhere", "-T", "dig", "--cl", "12", *flags)

    assert result.exit_code == 1
    assert result.stderr.endswith("Error: Chain limit of 12 exceeded.\n")
    assert len(provider.requests) == 12
    assert ("Compacted" in result.stderr) == is_compacted


@pytest.mark.parametrize("what", ["request", "system", "result"])
def test_what_has_to_stay_above_the_threshold_is_told_once_and_costs_no_summary_a_round(
    what: str, models: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    large = "There is a rule for each berth of the harbour. " * 400
    provider = Provider(digs(30))
    models.chatty = provider
    conversation = llm.get_model("chatty").conversation()

    def dig(place: str) -> str:
        return large if what == "result" and place == "9.0" else "Clay and sand. " * 60

    with llm_compact.auto(threshold="3k", model="extractive"):
        conversation.chain(
            large if what == "request" else "Dig everywhere",
            system=large if what == "system" else "You dig.",
            tools=[dig],
            chain_limit=0,
        ).text()

    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    done = [after for before, after in pairwise(provider.sizes) if after < before]
    assert len(told) == 1
    assert 3 <= len(done) <= 8
    assert max(provider.sizes) < count_tokens([llm.user(large)]) + 3_000
    if what == "result":
        # As soon as it need not stay, it does not.
        assert [size > 3_000 for size in provider.sizes].count(True) == 1


def test_a_small_request_after_a_large_one_is_below_the_threshold_again(models: Plugin) -> None:
    provider, conversation = talk_of_tides(models)

    with llm_compact.auto(threshold="1k", model="extractive"):
        conversation.prompt("Read this. " * 1_000).text()
        conversation.prompt("And now?").text()

    assert provider.sizes[0] > 1_000
    assert provider.sizes[1] < 600


# The log


def compactions(log: Log) -> list[dict[str, Any]]:
    return list(log.db["compactions"].rows_where(order_by="turn_id"))


def source_of(log: Log, conversation_id: str | None = None) -> Source:
    with open_log(log.path) as db:
        return read_source(db, conversation_id)


def assert_all_is_told(
    log: Log,
    conversation_id: str,
    provider: Provider,
    *,
    rounds: int,
    before: Sequence[Message] = (),
) -> None:
    """Each original message stands in the log once, in order, and what was sent is the tip."""
    originals = source_of(log, conversation_id).originals
    said = [m for m in before if m.role != "system"]
    assert [*map(key, originals[: len(said)])] == [*map(key, said)]
    loop = originals[len(said) :]
    assert [m.role for m in loop] == ["user", *["assistant", "tool"] * rounds, "assistant"]
    ids = [p.tool_call_id for m in loop for p in m.parts if isinstance(p, ToolCallPart)]
    asked = [call_id for n in range(rounds) for call_id, *_ in provider.answer(n).calls]  # type: ignore[union-attr]
    assert ids == asked
    assert pruned_hashes(originals) == []
    tip = log.store.thread_tip(conversation_id)
    assert log.store.ensure_chain([*provider.requests[-1], loop[-1]]) == tip
    turns = list(log.db["turns"].rows_where("thread_id = ?", [conversation_id], order_by="id"))
    made = [turn["id"] for turn in turns if turn["resolved_model"] in ("extractive", PRUNE_TOOLS)]
    assert made == [row["turn_id"] for row in compactions(log)]
    assert len(turns) == rounds + 1 + len(made)
    # A compaction comes right before the turn that it made room for.
    for turn, following in pairwise(turns):
        if turn["id"] in made:
            chain = log.store.load_chain(following["parent_message_hash"])
            assert f"'compaction': '{turn['id']}'" in str(chain)


AUTO = ("--auto-threshold", "400", "--compact-model", "extractive")


def test_a_compaction_is_a_conversation_of_its_own_before_the_provider_is_asked(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    original = log.messages()
    seen: list[Any] = []

    def answer(n: int) -> str:
        seen.append((log.threads(), compactions(log), log.messages()))
        return "At six."

    models.chatty = provider = Provider(answer)
    result = run("-c", "And today?", *AUTO)

    assert result.exit_code == 0, result.output
    ((threads, (row,), stored),) = seen
    old, new = threads
    assert (old["id"], new["forked_from"], new["name"]) == (long_talk, long_talk, old["name"])
    assert row["source_conversation_id"] == long_talk
    assert row["conversation_id"] == new["id"]
    assert row["source_tip_hash"] == old["tip_message_hash"]
    assert (row["generation"], row["trigger"], row["summarizer"]) == (1, "auto", "extractive")
    assert [*stored, llm.user("And today?")] == provider.requests[0]
    assert log.messages(long_talk) == original
    assert log.messages() == [*provider.requests[0], llm.assistant("At six.")]
    assert result.stderr.count("\n") == 1
    assert f"Original: llm -c --cid {long_talk}" in result.stderr


def test_the_tip_in_the_log_is_what_the_conversation_in_memory_goes_on_from(
    models: Plugin, log: Log
) -> None:
    models.chatty = Provider(tides)
    conversation = llm.get_model("chatty").conversation()
    threads = set()

    with llm_compact.auto(threshold="1k", model="extractive", database=log.path):
        for day in range(30):
            response = conversation.prompt(f"And on day {day}?", system="Be brief")
            response.text()
            response.log_to_db(log.db)
            threads.add(conversation.id)
            chain = [*response.prompt.messages, *response.messages()]
            rows = log.db["messages"].count
            assert log.store.ensure_chain(chain) == log.store.thread_tip(conversation.id)
            assert log.db["messages"].count == rows

    assert len(threads) == len(log.threads()) == 1 + len(compactions(log)) >= 4
    assert [row["generation"] for row in compactions(log)] == [*range(1, len(threads))]
    lineage = [thread["forked_from"] for thread in log.threads()]
    assert lineage == [None, *(thread["id"] for thread in log.threads()[:-1])]
    originals = [text_of(m) for m in source_of(log).originals]
    assert originals == [t for day in range(30) for t in (f"And on day {day}?", tides(day))]


def test_an_error_right_after_a_compaction_loses_nothing(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    original = log.messages()
    models.chatty.replies = [Reply(raises=ValueError("503 Try later"))]

    result = run("-c", "And today?", *AUTO)

    assert result.exit_code == 1
    assert result.stderr.endswith("Error: 503 Try later\n")
    assert log.messages(long_talk) == original
    assert len(compactions(log)) == 1
    assert violations(log.messages()) == set()
    assert list(source_of(log).originals) == original[1:]
    models.chatty.replies = ["At six."]
    assert run("-c", "Once more?", *AUTO).exit_code == 0
    assert len(log.threads()) == 2
    assert text_of(log.messages()[-2]) == "Once more?"


def test_an_error_amid_a_loop_loses_no_round_before_its_compaction(
    digging: None, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    answer = digs(60)
    models.chatty = Provider(
        lambda n: Reply(raises=ValueError("503")) if "Compacted" in marks(log) else answer(n)
    )

    def marks(log: Log) -> str:
        return "Compacted" if log.db["compactions"].exists() else ""

    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]
    result = run("-c", "Dig everywhere", "-T", "dig", *flags)

    assert result.exit_code == 1
    (row,) = compactions(log)
    originals = source_of(log).originals
    sent = models.chatty.requests[-2]
    assert [*map(key, originals[: len(sent) - 1])] == [*map(key, sent[1:])]
    assert originals[-1].role == "tool"
    assert row["source_conversation_id"] == long_talk
    assert violations(log.messages()) == set()
    models.chatty.answer = lambda n: "Enough."
    assert run("--cid", long_talk, "And now?", *flags).exit_code == 0
    assert log.newest()["id"] == row["conversation_id"]
    assert violations(models.chatty.requests[-1]) == set()


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import llm
from llm.cli import cli
from llm.plugins import pm
from test_automatic import Tools, digs
from scripted import Plugin, Script
class Deadly(Script):
    def next(self, prompt, key=None):
        if "llm_compact" in str([m.to_dict() for m in prompt.messages]):
            os.kill(os.getpid(), signal.SIGKILL)
        self.sent.append(prompt)
        return digs(60)(len(self.sent))
models = Plugin()
models.chatty = Deadly()
pm.register(models, name="scripted_models")
pm.register(Tools(), name="digging")
cli()
"""


@pytest.mark.parametrize("is_first", [False, True])
def test_a_process_that_is_killed_right_after_a_compaction_leaves_all_of_it(
    is_first: bool, long_talk: str, digging: None, models: Plugin, log: Log, run: Run
) -> None:
    before = [] if is_first else log.messages()
    tests, go_on = str(Path(__file__).parent), ["-m", "chatty"] if is_first else ["-c"]
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]

    done = subprocess.run(
        [sys.executable, "-c", KILLED, tests, *go_on, "Dig everywhere", "-T", "dig", *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "LLM_USER_PATH": str(log.path.parent)},
    )

    assert done.returncode == -signal.SIGKILL
    assert done.stderr.count("Compacted") == 1, done.stderr
    (row,) = compactions(log)
    source = source_of(log)
    assert source.id == row["conversation_id"]
    assert (row["source_conversation_id"] == source.id) == is_first
    originals = [*map(key, source.originals)]
    assert originals[: len(before[1:])] == [*map(key, before[1:])]
    loop = source.originals[len(before[1:]) :]
    assert text_of(loop[0]) == "Dig everywhere"
    assert [m.role for m in loop[1:]] == ["assistant", "tool"] * (len(loop) // 2)
    assert len(loop) > 5
    assert log.db.execute("pragma integrity_check").fetchone() == ("ok",)
    assert run("-c", "And now?").exit_code == 0
    assert violations(log.messages()) == set()


def test_the_first_prompt_of_a_conversation_keeps_its_id_through_a_long_loop(
    digging: None, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty = provider = Provider(digs(25))
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]

    assert (
        run("-m", "chatty", "-s", "You dig.", "Dig everywhere", "-T", "dig", *flags).exit_code == 0
    )

    (thread,) = log.threads()
    assert thread["forked_from"] is None
    assert thread["name"] == "Dig everywhere"
    assert {row["source_conversation_id"] for row in compactions(log)} == {thread["id"]}
    assert_all_is_told(log, thread["id"], provider, rounds=25)
    # The tools of the first turn are there when it goes on.
    models.chatty = Provider(
        lambda n: "Fine." if n else Reply(calls=[("x", "dig", {"place": "1"})])
    )
    assert run("-c", "Once more").exit_code == 0
    assert len(models.chatty.requests) == 2


@pytest.mark.parametrize("text", ["Dig.", "Dig  here,\nand\tthere. " * 9])
def test_a_conversation_that_begins_with_a_long_loop_is_called_as_llm_would(
    text: str, digging: None, models: Plugin, log: Log, run: Run
) -> None:
    names = []
    for threshold in ("off", "4k"):
        models.chatty = Provider(digs(8))
        flags = ["--auto-threshold", threshold, "--compact-model", "extractive", "--cl", "0"]
        assert run("-m", "chatty", text, "-T", "dig", *flags).exit_code == 0
        names.append(log.newest()["name"])

    assert compactions(log)
    assert names[0].strip() == names[1]


def test_json_tells_the_turn_that_a_compaction_made_room_for(
    long_talk: str, models: Plugin, run: Run
) -> None:
    for options in ([], ["-n"]):
        result = run("-c", "And today?", "--json", "--cid", long_talk, *AUTO, *options)

        (turn,) = json.loads(result.stdout)
        answer = f"Answer {len(models.chatty.sent)}."
        assert (turn["prompt"], turn["response"]) == ("And today?", answer)


def test_llm_logs_tells_it_in_order(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    models.chatty.replies = ["At six.", "At seven."]
    run("-c", "And today?", *AUTO)
    run("-c", "And tomorrow?", *AUTO)

    told = run("logs", "-c").stdout
    rows = json.loads(run("logs", "-c", "--json").stdout)

    summary = history_of(log.messages()).summary
    assert summary
    order = [summary.text.strip()[:40], "And today?", "At six.", "And tomorrow?", "At seven."]
    places = [told.index(text) for text in order]
    assert places == sorted(places)
    assert [row["response"] for row in rows] == [summary.text, "At six.", "At seven."]
    assert {row["conversation_id"] for row in rows} == {log.newest()["id"]}
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)


@pytest.mark.parametrize(
    ("is_on", "options", "is_logged"),
    [
        (True, [], True),
        (True, ["-n"], False),
        (False, [], False),
        (False, ["--log"], True),
    ],
)
def test_llm_prompt_writes_a_compaction_where_it_logs(
    is_on: bool,
    options: list[str],
    is_logged: bool,
    long_talk: str,
    models: Plugin,
    log: Log,
    run: Run,
) -> None:
    if not is_on:
        run("logs", "off")
    before = log.rows()

    result = run("-c", "And today?", *AUTO, *options)

    assert result.exit_code == 0, result.output
    assert result.stdout == "Answer 1.\n"
    assert "Compacted" in result.stderr
    assert ("Original:" in result.stderr) == is_logged
    assert count_tokens(models.chatty.sent[-1].messages) < 300
    assert (log.rows() != before) == is_logged
    assert len(log.threads()) == (2 if is_logged else 1)


def test_a_tool_loop_that_is_not_logged_is_compacted_in_memory(
    digging: None, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty = provider = Provider(digs(25))
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0", "-n"]

    result = run("-m", "chatty", "Dig everywhere", "-T", "dig", *flags)

    assert result.exit_code == 0, result.output
    assert result.stderr.count("Compacted") >= 3
    assert max(provider.sizes) <= 4_000
    assert not log.path.exists() or not log.threads()


def test_a_chat_logs_also_where_logging_is_off(long_talk: str, log: Log, run: Run) -> None:
    run("logs", "off")

    run("chat", "-c", *AUTO, input="And today?\nquit\n")

    assert len(log.threads()) == 2
    assert text_of(log.messages()[-2]) == "And today?"


@pytest.mark.parametrize("command", ["prompt", "chat"])
def test_another_database_is_honoured(
    command: str, long_talk: str, log: Log, tmp_path: Path, run: Run
) -> None:
    other = Log(tmp_path / "a place" / "other.db")
    other.path.parent.mkdir()
    log.path.rename(other.path)
    options = ["-c", "-d", str(other.path), *AUTO]

    if command == "chat":
        result = run("chat", *options, input="And today?\nquit\n")
    else:
        result = run(*options, "And today?")

    assert result.exit_code == 0, result.output
    assert len(other.threads()) == 2
    assert f"Original: llm -c -d '{other.path}' --cid {long_talk}" in result.stderr
    assert other.store.verify() == []
    assert not log.path.exists() or not log.db["threads"].exists() or not log.threads()


def test_a_fragment_is_stored_once_however_often_its_loop_is_compacted(
    digging: None, tmp_path: Path, models: Plugin, log: Log, run: Run
) -> None:
    novel = "Call me Ishmael, said he. " * 300
    (tmp_path / "novel.txt").write_text(novel)
    (tmp_path / "rules.txt").write_text("Never dig on a Sunday. " * 100 + "Amen.")
    models.chatty = provider = Provider(digs(20))
    flags = ["--auto-threshold", "6k", "--compact-model", "extractive", "--cl", "0"]
    files = ["-f", str(tmp_path / "novel.txt"), "--sf", str(tmp_path / "rules.txt")]

    run("-m", "chatty", "Dig for it", *files, "-T", "dig", *flags)
    models.chatty = Provider(tides)
    result = run("-c", "What of it?", *AUTO)

    assert result.exit_code == 0, result.output
    assert len(compactions(log)) >= 4
    assert any(novel in text_of(m) for m in provider.requests[-1])
    columns = [
        ("parts", "text"),
        ("parts", "payload"),
        ("turns", "response_json"),
        ("fragments", "content"),
    ]
    for text in ("Call me Ishmael, said he. " * 9, "Never dig on a Sunday. " * 9):
        holders = [
            table
            for table, column in columns
            for row in log.db[table].rows
            if text in (row[column] or "")
        ]
        assert holders == ["fragments"]


def test_attachments_are_kept_and_told(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    models.chatty = Provider(lambda n: "A chart. " * 40, reports=False)
    conversation = llm.get_model("chatty").conversation()
    picture = llm.Attachment(type=PICTURE.type, content=PICTURE.content)

    with llm_compact.auto(threshold="5k", model="extractive", database=log.path):
        for _ in range(8):
            response = conversation.prompt("What is it?", attachments=[picture])
            response.text()
            response.log_to_db(log.db)

    assert len(compactions(log)) >= 1
    assert max(models.chatty.sizes) <= 5_000
    assert log.db["attachments"].count == 1
    originals = source_of(log).originals
    assert len(originals) == 16
    assert all(len(m.parts) == 2 for m in originals[::2])


def test_reasoning_goes_with_an_open_round_and_not_with_a_finished_one(
    models: Plugin, log: Log
) -> None:
    models.chatty = provider = Provider(digs(12, reasoning="Deep thoughts."))
    conversation = llm.get_model("chatty").conversation()

    with llm_compact.auto(threshold="3k", model="extractive", database=log.path):
        chain = conversation.chain("Dig everywhere", tools=[dig], chain_limit=0)
        chain.text()
        chain.log_to_db(log.db)
        for _ in range(12):
            response = conversation.prompt("And what was it? " * 40)
            response.text()
            response.log_to_db(log.db)

    def thoughts(messages: Sequence[Message]) -> int:
        return sum(isinstance(part, ReasoningPart) for m in messages for part in m.parts)

    in_loop = [r for r in provider.requests[1:13] if history_of(r).summary]
    assert in_loop
    for request in in_loop:
        rounds = [m for m in history_of(request).body if m.role == "assistant"]
        assert thoughts(request) == len(rounds) > 0
    assert len(compactions(log)) > 2
    assert thoughts(provider.requests[-1]) == 0
    assert thoughts(source_of(log).originals) == 12


def test_a_compaction_by_hand_goes_on_from_the_automatic_ones(
    digging: None, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    before = log.messages()
    models.chatty = Provider(digs(20))
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]
    run("-c", "Dig everywhere", "-T", "dig", *flags)
    originals = source_of(log).originals
    automatic = compactions(log)

    result = run("compact", "-c", "-m", "extractive", "--keep", "1m")

    assert result.exit_code == 0, result.output
    row = compactions(log)[-1]
    assert row["generation"] == len(automatic) + 1 >= 3
    assert row["trigger"] == "manual"
    assert row["source_conversation_id"] == automatic[-1]["conversation_id"]
    source = source_of(log)
    assert [*map(key, source.originals)] == [*map(key, originals)]
    assert len(originals) == len(before[1:]) + 42
    stands_for = history_of(source.messages).summary
    kept = len(history_of(source.messages).body)
    assert stands_for and stands_for.marker.head == len(originals) - kept


# Old conversations


def test_an_old_conversation_goes_on_in_its_newest_generation(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    said = [run("-c", "--cid", long_talk, f"Again {n}?", *AUTO, "-s", "x") for n in range(3)]

    assert [result.exit_code for result in said] == [0, 0, 0]
    newest = log.newest()["id"]
    assert len(log.threads()) == 2
    assert len(compactions(log)) == 1
    assert "going on in" not in said[0].stderr
    for result in said[1:]:
        assert result.stderr.count("\n") == 1
        assert f"{long_talk} was compacted, going on in {newest}" in result.stderr
    asked = [text_of(m) for m in log.messages() if text_of(m).startswith("Again")]
    assert asked == ["Again 0?", "Again 1?", "Again 2?"]


def test_an_old_conversation_leads_through_all_generations(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty = Provider(tides)

    for n in range(12):
        assert run("--cid", long_talk, f"Again {n}?", *AUTO).exit_code == 0

    assert len(compactions(log)) >= 2
    assert len(log.threads()) == 1 + len(compactions(log))
    asked = [text_of(m) for m in source_of(log).originals if text_of(m).startswith("Again")]
    assert asked == [f"Again {n}?" for n in range(12)]
    assert len(log.messages(long_talk)) == 13


def test_llm_chat_goes_on_in_the_newest_generation_too(long_talk: str, log: Log, run: Run) -> None:
    run("-c", "And today?", *AUTO)

    result = run("chat", "--cid", long_talk, *AUTO, input="And tomorrow?\nquit\n")

    assert f"going on in {log.newest()['id']}" in result.stderr
    assert len(log.threads()) == 2
    assert text_of(log.messages()[-2]) == "And tomorrow?"


def test_what_was_said_since_in_an_old_conversation_goes_on_there(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("-c", "And today?", *AUTO)
    run("--cid", long_talk, "In the original", "--auto-threshold", "off")

    result = run("--cid", long_talk, "Again", "--auto-threshold", "100k")

    assert result.stderr == ""
    asked = [text_of(m) for m in log.messages(long_talk) if m.role == "user"]
    assert asked[-2:] == ["In the original", "Again"]


def test_an_old_conversation_that_went_on_has_a_newest_generation_of_its_own(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("-c", "And today?", *AUTO)
    run("--cid", long_talk, "In the original", "--auto-threshold", "off")
    run("--cid", long_talk, "Again", *AUTO)
    newest = log.newest()["id"]

    result = run("--cid", long_talk, "And again", *AUTO)

    assert len(log.threads()) == 3
    assert f"going on in {newest}" in result.stderr
    asked = [text_of(m) for m in source_of(log, newest).originals if m.role == "user"]
    assert asked[-3:] == ["In the original", "Again", "And again"]


def test_a_compaction_by_hand_is_gone_on_from_as_well(long_talk: str, log: Log, run: Run) -> None:
    run("compact", "-c", "-m", "extractive")
    newest = log.newest()["id"]

    result = run("--cid", long_talk, "Again", *AUTO)

    assert f"going on in {newest}" in result.stderr
    assert text_of(log.messages(newest)[-2]) == "Again"


@pytest.mark.parametrize("options", [[], ["--auto-threshold", "off"]])
def test_without_a_threshold_an_old_conversation_is_itself(
    options: list[str], long_talk: str, log: Log, run: Run
) -> None:
    run("-c", "And today?", *AUTO)

    result = run("--cid", long_talk, "In the original", *options)

    assert result.stderr == ""
    assert text_of(log.messages(long_talk)[-2]) == "In the original"


def test_where_the_newest_generation_was_deleted_the_one_before_goes_on(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty = Provider(tides)
    while len(log.threads()) < 3:
        run("--cid", long_talk, "Again?", *AUTO)
    _, middle, newest = (thread["id"] for thread in log.threads())
    with log.db.conn as connection:
        connection.execute("delete from threads where id = ?", [newest])

    result = run("--cid", long_talk, "Once more", "--auto-threshold", "100k")

    assert result.exit_code == 0, result.output
    assert f"going on in {middle}" in result.stderr
    assert text_of(log.messages(middle)[-2]) == "Once more"


@pytest.mark.parametrize("version", ["0.20", "0.31", "now"])
@pytest.mark.parametrize("command", ["prompt", "chat"])
def test_a_conversation_of_an_older_llm_goes_on_in_its_newest_generation(
    command: str, version: str, models: Plugin, log: Log, run: Run
) -> None:
    old = OldLog(log.path, version).long_talk()

    def say(text: str) -> Result:
        if command == "chat":
            return run("chat", "--cid", old, *AUTO, input=f"{text}\nquit\n")
        return run("--cid", old, text, *AUTO)

    first, second = say("And today?"), say("And tomorrow?")

    assert first.exit_code == second.exit_code == 0
    (row,) = compactions(log)
    assert (row["source_conversation_id"], row["generation"]) == (old, 1)
    assert first.stderr.count("\n") == second.stderr.count("\n") == 1
    assert f"{old} was compacted, going on in {row['conversation_id']}" in second.stderr
    originals = [text_of(m) for m in source_of(log).originals]
    assert len(originals) == 16
    assert originals[0] == "When was high water, 0?"
    assert originals[12::2] == ["And today?", "And tomorrow?"]


def test_a_tool_loop_in_a_conversation_of_an_older_llm_loses_nothing(
    digging: None, models: Plugin, log: Log, run: Run
) -> None:
    old = OldLog(log.path).long_talk()
    models.chatty = provider = Provider(digs(20))
    flags = ["--auto-threshold", "4k", "--compact-model", "extractive", "--cl", "0"]

    assert run("--cid", old, "Dig everywhere", "-T", "dig", *flags).exit_code == 0

    (thread,) = log.threads()
    assert thread["id"] != old
    told = [m for r in provider.requests[:1] for m in r[:-1]]
    assert_all_is_told(log, thread["id"], provider, rounds=20, before=told)
    models.chatty = Provider(tides)
    assert f"going on in {thread['id']}" in run("--cid", old, "Again", *flags).stderr


def test_a_conversation_of_an_older_llm_that_went_on_goes_on_there(
    models: Plugin, log: Log, run: Run
) -> None:
    old = OldLog(log.path).long_talk()
    run("--cid", old, "And today?", *AUTO)
    run("--cid", old, "In the original", "--auto-threshold", "off")

    result = run("--cid", old, "Again", "--auto-threshold", "100k")

    assert result.stderr == ""
    assert text_of(log.messages(old)[-2]) == "Again"


@pytest.mark.parametrize("command", ["prompt", "chat"])
def test_llm_continue_goes_on_in_the_newest_generation_where_the_old_id_sorts_above(
    command: str, models: Plugin, log: Log, run: Run
) -> None:
    OldLog(log.path, "now").long_talk("tides-of-ribe")

    def say(text: str) -> Result:
        if command == "chat":
            return run("chat", "-c", *AUTO, input=f"{text}\nquit\n")
        return run("-c", text, *AUTO)

    first, second = say("And today?"), say("And tomorrow?")

    (row,) = compactions(log)
    assert f"Go on: llm -c --cid {row['conversation_id']}. Original:" in first.stderr
    assert f"tides-of-ribe was compacted, going on in {row['conversation_id']}" in second.stderr
    asked = [text_of(m) for m in log.messages(row["conversation_id"]) if m.role == "user"]
    assert asked[-2:] == ["And today?", "And tomorrow?"]


@pytest.mark.parametrize("version", ["0.13", "0.31"])
def test_llm_continue_says_nothing_where_nothing_was_compacted(
    version: str, models: Plugin, log: Log, run: Run
) -> None:
    old = OldLog(log.path, version).long_talk()

    result = run("-c", "And today?", "--auto-threshold", "100k")

    assert (result.exit_code, result.stderr) == (0, "")
    assert text_of(log.messages(old)[-2]) == "And today?"


def test_llm_continue_in_an_empty_log_is_as_it_was(log: Log, run: Run) -> None:
    log.path.parent.mkdir()
    log.path.write_bytes(b"")

    result = run("-c", "And today?", "-m", "gone", *AUTO)

    assert result.exit_code == 1
    assert "gone" in result.stderr


def test_a_summary_yields_to_what_a_large_system_prompt_leaves(
    models: Plugin, log: Log, run: Run
) -> None:
    system = "You keep the tide tables of the North Sea. " * 110
    policy = ("--auto-threshold", "3k", "--compact-model", "extractive")
    said = "".join(f"What about port {n}? {LONG.format(place='Ribe', n=n)}\n" for n in range(24))

    result = run("chat", "-m", "chatty", "-s", system, *policy, input=f"{said}quit\n")

    assert result.exit_code == 0, result.output
    rows = list(log.db["compactions"].rows)
    assert rows
    assert [row["tokens_after"] for row in rows if row["tokens_after"] >= 0.6 * 3_000] == []


# What a provider counts goes on through the generations


@pytest.fixture
def told_size(models: Plugin, log: Log, run: Run) -> int:
    """The size that a compaction told of a conversation whose provider counts 1.4 for one."""
    models.chatty = Provider(tides, factor=1.4, overhead=300)
    for day in range(12):
        run(*(["-c"] if day else ["-m", "chatty", "-s", "Be brief"]), f"And on day {day}?")
    return llm_compact.compact(model="extractive", keep="4x").tokens_after


def test_a_new_conversation_is_counted_as_its_provider_counted_the_one_before(
    told_size: int, models: Plugin, log: Log, run: Run
) -> None:
    def size() -> int:
        told = run("compact", "-c", "-k", "1x", "--dry-run", "--json").stdout
        tokens: int = json.loads(told)["tokens_before"]
        return tokens

    assert isinstance(models.chatty, Provider)
    before = size()
    run("-c", "Thanks.")
    plain = count_tokens(log.messages()[:-2])

    assert plain < 0.8 * told_size
    assert abs(before - told_size) <= 2
    assert abs(models.chatty.sizes[-1] - told_size) < 0.04 * told_size
    assert size() > told_size


def test_another_models_counts_say_nothing_of_this_one(
    told_size: int, models: Plugin, log: Log
) -> None:
    with open_log(log.path) as db:
        own, other = (read_known(db, name, log.messages(), []) for name in ("chatty", "summer"))

    assert own.factor > 1.2 and own.newest is None
    assert other == UNKNOWN


def test_where_nothing_was_said_in_a_generation_the_counts_of_the_one_before_hold(
    told_size: int, log: Log
) -> None:
    llm_compact.compact(model="extractive", keep="1x")

    with open_log(log.path) as db:
        assert read_known(db, "chatty", log.messages(), []).factor > 1.2


@pytest.mark.parametrize(("share", "is_compacted"), [(0.9, True), (1.15, False)])
def test_a_threshold_is_reached_by_what_the_provider_of_the_generation_before_counts(
    share: float, is_compacted: bool, told_size: int, run: Run
) -> None:
    flags = ["--auto-threshold", str(int(share * told_size)), "--compact-model", "extractive"]

    assert ("Compacted" in run("-c", "Thanks.", *flags).stderr) == is_compacted
