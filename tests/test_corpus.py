"""Real conversations, where a corpus of them lies beside the checkout: it is not ours to ship."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import llm
import pytest
import sqlite_utils
from llm.logs import LogStore
from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart
from oracle import count_tokens, key, requests_of, violations
from test_store import log_chain

import llm_compact
from llm_compact.check import is_in_language
from llm_compact.conversation import history_of
from llm_compact.errors import NothingToCompact
from llm_compact.estimate import estimate
from llm_compact.language import language_of, words
from llm_compact.log import open_log
from llm_compact.sizes import message_sizes
from llm_compact.source import read_source
from llm_compact.summarizers.extractive import extract
from llm_compact.summary import Head, sections_of
from llm_compact.tokens import Reported, calibrate, message_tokens
from llm_compact.vocabulary import Counter, find_counter

CORPUS = Path(
    os.environ.get("LLM_COMPACT_CORPUS")
    or Path(__file__).parents[2] / "shared" / "corpus" / "dev.jsonl"
)

pytestmark = [
    pytest.mark.skipif(not CORPUS.exists(), reason="no corpus beside the checkout"),
    # One log for all of them, which the last tests look at.
    pytest.mark.xdist_group("corpus"),
]


@cache
def conversations() -> dict[str, list[Message]]:
    with CORPUS.open(encoding="utf-8") as lines:
        return {line["id"]: chain_of(line) for line in map(json.loads, lines)}


def chain_of(line: dict[str, Any]) -> list[Message]:
    chain = [llm.system(line["system"].strip())] if line["system"] else []
    for message in line["messages"]:
        parts: list[Any] = [TextPart(text=message["text"])] if message["text"] else []
        parts += [
            ToolCallPart(name=c["name"], arguments=c["arguments"], tool_call_id=c["id"])
            for c in message.get("tool_calls") or []
        ]
        parts += [
            ToolResultPart(name=r["name"], output=r["output"], tool_call_id=r["id"])
            for r in message.get("tool_results") or []
        ]
        chain.append(Message(role=message["role"], parts=parts))
    return chain


@cache
def true_tokens() -> dict[str, int]:
    with CORPUS.open(encoding="utf-8") as lines:
        return {line["id"]: line["stats"]["tokens_o200k"] for line in map(json.loads, lines)}


@cache
def languages() -> dict[str, str]:
    if not CORPUS.exists():
        return {}
    with CORPUS.open(encoding="utf-8") as lines:
        return {line["id"]: line["lang"] for line in map(json.loads, lines)}


def sizes(id: str, count: Callable[[str], int]) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llm_compact.tokens.counter", lambda: Counter("test", count))
        return message_sizes(conversations()[id])


def true_sizes(id: str) -> list[int]:
    """Each message counted exactly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llm_compact.tokens.counter", find_counter)
        return [message_tokens(message) for message in conversations()[id]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them in one log."""
    path = tmp_path_factory.mktemp("corpus") / "logs.db"
    LogStore(sqlite_utils.Database(path))
    return path


def ids() -> list[str]:
    return list(conversations()) if CORPUS.exists() else []


@pytest.mark.parametrize("id", ids())
def test_a_real_conversation_is_compacted_without_a_violation(id: str, path: Path) -> None:
    chain = conversations()[id]
    source_id = log_chain(path, chain)

    compaction = llm_compact.compact(source_id, database=path, model="extractive")

    store = LogStore(sqlite_utils.Database(path))
    stored = store.thread_messages(compaction.id)
    assert violations(stored) == set()
    assert requests_of(stored)[-1] == requests_of(chain)[-1]
    assert store.thread_messages(source_id) == chain
    assert [m.role for m in stored].count("system") == [m.role for m in chain].count("system")
    assert compaction.tokens_after < compaction.tokens_before
    history = history_of(stored)
    kept = count_tokens([*history.system, *history.body])
    replaced = compaction.tokens_before - kept
    assert compaction.summary_tokens <= max(replaced / 10, min(150, replaced / 4))


def in_other_languages() -> list[tuple[str, str]]:
    return [(id, language) for id, language in languages().items() if language != "en"]


@pytest.mark.parametrize(("id", "language"), in_other_languages())
def test_a_summary_is_in_the_language_of_a_real_conversation(id: str, language: str) -> None:
    messages = [message for message in conversations()[id] if message.role != "system"][:-2]
    tokens = count_tokens(messages)
    head = Head(messages, None, messages, tokens, language_of(messages), max(300, tokens // 10))

    summary = extract(head)

    said = words(language)
    sections = dict(sections_of(summary))
    prose = "\n".join(sections[said["requests"]] + sections.get(said["statements"], []))
    assert head.language == language
    assert sections.keys() <= {"", *said.values()}
    assert is_in_language(summary, language)
    if language != "tr":
        # One letter of these says as much as two or three of the Latin ones, and the users of
        # some agents paste instructions in English.
        letters = [letter for letter in prose if letter.isalpha()]
        assert sum(letter > "\u2e80" for letter in letters) > len(letters) / 8


@pytest.mark.parametrize("id", ids())
def test_the_tool_output_of_a_real_conversation_is_pruned_without_a_violation(
    id: str, path: Path
) -> None:
    chain = conversations()[id]
    source_id = log_chain(path, chain)
    try:
        compaction = llm_compact.compact(source_id, database=path, prune_tools=True, again=True)
    except NothingToCompact:
        return

    store = LogStore(sqlite_utils.Database(path))
    stored = store.thread_messages(compaction.id)
    assert violations(stored) == set()
    assert [m.role for m in stored] == [m.role for m in chain]
    said = [key(m) for m in chain if m.role != "tool"]
    assert [key(m) for m in stored if m.role != "tool"] == said
    assert count_tokens(stored) < count_tokens(chain)
    with open_log(path) as db:
        originals = read_source(db, compaction.id).originals
    assert list(originals) == [m for m in chain if m.role != "system"]


def test_pruning_alone_takes_half_of_the_tokens_of_agent_runs(path: Path) -> None:
    before = after = 0
    with open_log(path) as db:
        for row in db.query("select * from compactions where summarizer = 'prune-tools'"):
            before += row["tokens_before"]
            after += row["tokens_after"]
    assert 0 < after < before / 2


def test_an_estimate_is_within_a_tenth_of_the_truth_on_19_of_20_conversations() -> None:
    near = [
        abs(sum(sizes(id, estimate)) - true_tokens()[id]) <= 0.1 * true_tokens()[id]
        for id in conversations()
    ]
    assert sum(near) >= 0.95 * len(near)


@pytest.mark.parametrize("factor, overhead", [(1.0, 0), (1.3, 3_000)])
def test_a_calibrated_estimate_is_within_a_twentieth(factor: float, overhead: int) -> None:
    pytest.importorskip("bpe_openai")
    near = []
    for id, chain in conversations().items():
        true = [factor * size for size in true_sizes(id)]
        before = [0.0, *accumulate(true)]
        reported = [
            Reported(i, round(overhead + before[i]), i + 1, round(true[i]))
            for i, message in enumerate(chain)
            if message.role == "assistant"
        ]
        plain = sizes(id, estimate)
        calibration = calibrate(plain, reported)
        # By factor and overhead alone, as what comes after a compaction is counted.
        told = calibration.overhead + calibration.tokens(sum(plain))
        near.append(abs(told - overhead - sum(true)) <= 0.05 * (overhead + sum(true)))
    assert sum(near) >= 0.95 * len(near)


def test_the_log_is_sound_after_all_of_them(path: Path) -> None:
    assert LogStore(sqlite_utils.Database(path)).verify() == []
