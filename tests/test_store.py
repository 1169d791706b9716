"""What stands in the log after a compaction, and after ten."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import llm
import pytest
import sqlite_utils
from click.testing import Result
from conftest import LONG, Log, Talk
from conversations import conversations
from hypothesis import HealthCheck, given, settings
from llm.logs import LogStore
from llm.parts import Message
from oracle import key, violations
from scripted import Plugin

import llm_compact
from llm_compact.conversation import history_of, marker_of, text_of
from llm_compact.errors import CompactionError
from llm_compact.store import LoggedModel, open_log, read_source
from llm_compact.tokens import count_tokens

Run = Callable[..., Result]


def log_chain(path: Path, chain: Sequence[Message]) -> str:
    """Log a chain as one turn and what came after it. Returns the conversation's id."""
    store = LogStore(sqlite_utils.Database(path))
    last = max(i for i, m in enumerate(chain) if m.role == "assistant")
    response = llm.Response.from_dict(
        {
            "model": "chatty",
            "prompt": {"messages": [m.to_dict() for m in chain[:last]]},
            "messages": [chain[last].to_dict()],
        },
        model=LoggedModel("chatty"),
    )
    conversation_id = store.create_thread(name="a chain")
    store.log(response, conversation_id)
    store.append(conversation_id, chain[last + 1 :])
    return conversation_id


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations())
def test_what_is_stored_is_valid_and_nothing_is_lost(chain: list[Message]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "logs.db"
        source_id = log_chain(path, chain)
        with open_log(path) as db:
            source = list(read_source(db, source_id).messages)
        try:
            compaction = llm_compact.compact(
                source_id, database=path, model="extractive", keep="3m"
            )
        except CompactionError:
            return
        store = LogStore(sqlite_utils.Database(path))
        stored = store.thread_messages(compaction.id)

        assert store.verify() == []
        assert store.thread_messages(source_id) == source
        assert violations(stored) <= violations(source)
        assert count_tokens(stored) == compaction.tokens_after < compaction.tokens_before
        tail = history_of(stored).body
        assert len(tail) == compaction.messages_kept
        # Only reasoning of finished exchanges is missing in what is kept.
        kept = [key(m) for m in tail]
        body = [key(m) for m in history_of(source).body]
        # The first may be the request of an exchange that was cut between its rounds.
        assert kept[0] in body
        assert len(kept) == 1 or kept[1:] == body[1 - len(kept) :]


@settings(max_examples=40)
@given(conversations())
def test_the_chain_in_memory_is_the_chain_in_the_log(chain: list[Message]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "logs.db"
        log_chain(path, chain)
        try:
            compaction = llm_compact.compact(database=path, model="extractive", keep="3m")
        except CompactionError:
            return
        store = LogStore(sqlite_utils.Database(path))
        before = store.db["messages"].count

        tip = store.ensure_chain(store.thread_messages(compaction.id))

        assert tip == store.thread_tip(compaction.id)
        assert store.db["messages"].count == before


def generations(talk: Talk, run: Run, models: Plugin, log: Log, number: int) -> list[str]:
    """Compact and talk on, so many times; the ids of the conversations, the original first."""
    ids = [talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(6)])]
    for generation in range(1, number + 1):
        models.summer.replies = [f"Summary {generation}: the tides of Ribe."]
        assert run("compact", "-c", "-m", "summer").exit_code == 0
        ids.append(log.newest()["id"])
        for n in range(3):
            models.chatty.replies = [LONG.format(place=f"Skagen {generation}", n=n)]
            run("-c", f"Question {generation}.{n}?")
    return ids


def test_a_second_generation_covers_the_first_summary_and_everything_since(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    ids = generations(talk, run, models, log, 1)
    old_tail = history_of(log.messages(ids[1])).body[:4]
    models.summer.replies = ["Summary 2: the tides of Ribe and Skagen."]

    assert run("compact", "-c", "-m", "summer", "--keep", "1x").exit_code == 0

    sent = models.summer.texts_sent()
    assert "Summary 1: the tides of Ribe." in sent
    assert all(text_of(message) in sent for message in old_tail)
    assert "Question 1.1?" in sent and "Question 1.2?" not in sent
    chain = log.messages()
    assert [text_of(m) for m in chain if marker_of(m) and m.role == "assistant"] == [
        "Summary 2: the tides of Ribe and Skagen."
    ]
    assert "Summary 1" not in "".join(text_of(m) for m in chain)
    row = list(log.db["compactions"].rows_where(order_by="turn_id"))[-1]
    assert (row["generation"], row["source_conversation_id"]) == (2, ids[1])


def test_ten_generations_do_not_grow_the_chain(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    ids = generations(talk, run, models, log, 10)

    marker = marker_of(log.messages(ids[-1])[0])
    assert marker is not None and marker.generation == 10
    # 6 + 9 * 3 exchanges were there when the tenth was made, and two of them are kept.
    assert marker.head == 2 * (6 + 9 * 3 - 2)
    after = [row["tokens_after"] for row in log.db["compactions"].rows_where(order_by="turn_id")]
    assert max(after) < 1.1 * after[0]
    assert len({len(log.messages(id)) for id in ids[2:]}) == 1


def test_ten_offline_generations_neither_grow_nor_fade(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    first = "Always write heights in cm and never touch the table of station K-4711."
    talk(
        [(first, "Agreed. " + LONG.format(place="Ribe", n=1))]
        + [(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(30)]
    )
    sizes = []
    for generation in range(10):
        assert run("compact", "-c", "-m", "extractive", "--quiet").exit_code == 0
        history = history_of(log.messages())
        assert history.summary is not None
        assert "K-4711" in history.summary.text
        sizes.append(count_tokens(log.messages()))
        for n in range(4):
            models.chatty.replies = [LONG.format(place=f"Skagen {generation}", n=n)]
            run("-c", f"Question {generation}.{n}?")

    assert max(sizes) <= 1.1 * sizes[0]


def test_the_originals_of_all_generations_are_found_again(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    ids = generations(talk, run, models, log, 3)
    said = [text_of(m) for m in log.messages(ids[0])]
    for id in ids[1:]:
        own = history_of(log.messages(id)).body[4:]
        said += [text_of(m) for m in own]

    with open_log(log.path) as db:
        source = read_source(db, None)

    assert [text_of(m) for m in source.originals] == said


def test_an_offline_summary_keeps_what_a_model_wrote_before(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    insight = "The harbour master prefers the western quay, for reasons of his own."
    models.summer.replies = [
        f"## Decisions\n- {insight}\n\n## Goal\n- Know the tides of six places"
    ]
    run("compact", "-c", "-m", "summer")
    for n in range(8):
        models.chatty.replies = [LONG.format(place="Skagen", n=n)]
        run("-c", f"Question {n}?")

    result = run("compact", "-c", "-m", "extractive")

    assert insight in result.stdout


def test_the_compactions_table_tells_what_was_done(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    tip = log.store.thread_tip(long_talk)

    run("compact", "-c", "-m", "extractive", "mind the units")

    (row,) = log.db["compactions"].rows
    thread = log.newest()
    (turn,) = log.db["turns"].rows_where("thread_id = ?", [thread["id"]])
    expected = {
        "turn_id": turn["id"],
        "conversation_id": thread["id"],
        "source_conversation_id": long_talk,
        "source_tip_hash": tip,
        "generation": 1,
        "trigger": "manual",
        "summarizer": "extractive",
        "instructions": "mind the units",
        "messages_summarized": 8,
        "messages_kept": 4,
        "exchanges_summarized": 4,
        "exchanges_kept": 2,
        "calls": 0,
        "input_tokens": 0,
        "datetime_utc": turn["datetime_utc"],
        "duration_ms": turn["duration_ms"],
    }
    assert {column: row[column] for column in expected} == expected
    assert {(fk.column, fk.other_table) for fk in log.db["compactions"].foreign_keys} == {
        ("turn_id", "turns"),
        ("conversation_id", "threads"),
        ("source_tip_hash", "messages"),
    }


def test_reasoning_of_finished_exchanges_is_not_sent_on(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    from llm.parts import ReasoningPart
    from scripted import Reply

    answers = [[Reply(LONG.format(place="Ribe", n=n), reasoning="hm")] for n in range(5)]
    talk([(f"Question {n}?", answer) for n, answer in enumerate(answers)])

    run("compact", "-c", "-m", "extractive")

    parts = [part for message in log.messages() for part in message.parts]
    assert not [part for part in parts if isinstance(part, ReasoningPart)]


def test_reasoning_of_an_open_tool_round_stays(log: Log, models: Plugin) -> None:
    from llm.parts import ReasoningPart, ToolCallPart, ToolResultPart

    call = ToolCallPart(name="lookup", arguments={"key": "x"}, tool_call_id="c1")
    thought = ReasoningPart(text="hm", provider_metadata={"anthropic": {"signature": "s"}})
    chain = []
    for n in range(4):
        chain += [llm.user(f"Question {n}?"), llm.assistant(LONG.format(place="Ribe", n=n))]
    chain += [
        llm.user("Look it up"),
        llm.assistant(thought, call),
        llm.tool_message(ToolResultPart(name="lookup", output="found", tool_call_id="c1")),
    ]
    log.store.verify()
    log_chain(log.path, chain)

    llm_compact.compact(model="extractive")

    assert log.messages()[-2:] == chain[-2:]


def test_a_foreign_key_check_finds_nothing(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "-c", "-m", "extractive")

    tables = [row[1] for row in log.db.execute("pragma foreign_key_check").fetchall()]
    assert tables == []


@pytest.mark.parametrize("name", ["turns", "threads", "messages", "parts", "compactions"])
def test_a_statement_that_fails_rolls_everything_back(
    name: str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    # A trigger fails in the middle of the transaction, as a full disk would.
    if name == "compactions":
        run("compact", "-c", "-m", "extractive", "--quiet")
    log.db.execute(
        f"create trigger stop before insert on {name} begin select raise(abort, 'disk full'); end"
    )
    before = log.rows()

    result = run("compact", "--cid", long_talk, "-m", "extractive", "--again")

    assert result.exit_code == 1
    assert "disk full" in result.stderr and "Nothing was written" in result.stderr
    assert log.rows() == before
