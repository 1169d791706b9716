"""Our reading of a chain against llm's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llm
import pytest
import sqlite_utils
from conversations import PICTURE, conversations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llm.logs import LogStore
from llm.parts import AttachmentPart, Message, Part, ReasoningPart, TextPart, ToolResultPart

from llm_compact.chain import load_chain

LINKED = llm.Attachment(type="application/pdf", url="https://example.org/tides.pdf")
FRAGMENTS = ["The tide table for Ribe", "table", "潮汐表", "High water"]
METADATA = st.sampled_from([None, {"anthropic": {"signature": "abc"}}, {"note": "潮 🌊"}])


class NewerStore(LogStore):
    """The store of an llm that knows more than we do."""

    def load_chain(self, tip: str | None) -> list[Message]:
        return [llm.user("read by llm")]


@st.composite
def decorated(draw: st.DrawFn) -> list[Message]:
    """A conversation with all that llm can store beside the words."""
    return [
        Message(
            role=message.role,
            parts=[draw(variants(part)) for part in message.parts],
            provider_metadata=draw(METADATA),
        )
        for message in draw(conversations())
    ]


def variants(part: Part) -> st.SearchStrategy[Part]:
    changes: dict[str, st.SearchStrategy[object]] = {"provider_metadata": METADATA}
    if isinstance(part, (TextPart, ReasoningPart)):
        changes["text"] = st.sampled_from(["", part.text])
    if isinstance(part, ReasoningPart):
        changes["redacted"] = st.booleans()
    if isinstance(part, ToolResultPart):
        changes["exception"] = st.sampled_from([None, "ValueError: low tide"])
        changes["attachments"] = st.lists(st.sampled_from([PICTURE, LINKED]), max_size=2)
    if isinstance(part, AttachmentPart):
        changes["attachment"] = st.sampled_from([None, PICTURE, LINKED])
    return st.fixed_dictionaries(changes).map(lambda new: replace(part, **new))  # type: ignore[call-arg]


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(sqlite_utils.Database(tmp_path / "logs.db"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(decorated(), st.lists(st.sampled_from(FRAGMENTS), unique=True))
def test_a_chain_is_read_as_llm_reads_it(
    store: LogStore, messages: list[Message], fragments: list[str]
) -> None:
    tip = store.ensure_chain(messages, fragments=fragments)

    chain = load_chain(store, tip)

    assert chain.messages == store.load_chain(tip)
    assert [part.to_dict() for m in chain.messages for part in m.parts] == [
        part.to_dict() for m in messages for part in m.parts
    ]
    # A hash is that of the chain up to its message.
    assert [load_chain(store, hash).messages[-1] for hash in chain.hashes] == chain.messages
    assert chain.hashes[-1] == tip


def test_fragments_and_attachments_are_no_reason_to_leave_a_chain_to_llm(tmp_path: Path) -> None:
    store = NewerStore(sqlite_utils.Database(tmp_path / "logs.db"))
    messages = [
        llm.user("The tide table for Ribe", AttachmentPart(attachment=PICTURE)),
        llm.assistant("It is high."),
    ]

    tip = store.ensure_chain(messages, fragments=FRAGMENTS)

    assert len(load_chain(store, tip).messages) == 2


def add_column(table: str) -> Callable[[LogStore], None]:
    return lambda store: store.db[table].add_column("language", str)


def change_parts(**columns: object) -> Callable[[LogStore], None]:
    def change(store: LogStore) -> None:
        for row in store.db["parts"].rows:
            store.db["parts"].update(row["id"], columns)

    return change


@pytest.mark.parametrize(
    "change",
    [
        add_column("messages"),
        add_column("parts"),
        add_column("fragments"),
        add_column("attachments"),
        change_parts(type="video"),
        change_parts(payload=json.dumps({"languages": ["da"]})),
        change_parts(payload=json.dumps({"text_ref": [{"fragment": 1, "until": 20}]}), text=None),
        change_parts(type="attachment", payload=json.dumps({"attachment": {"hash": "x"}})),
    ],
)
def test_a_form_that_is_not_known_is_left_to_llm(
    tmp_path: Path, change: Callable[[LogStore], None]
) -> None:
    store = NewerStore(sqlite_utils.Database(tmp_path / "logs.db"))
    tip = store.ensure_chain([llm.user("Is it high?"), llm.assistant("It is.")])
    change(store)

    chain = load_chain(store, tip)

    assert chain.messages == [llm.user("read by llm")]
    assert chain.hashes[-1] == tip


def test_a_message_that_is_missing_is_told_as_llm_tells_it(store: LogStore) -> None:
    tip = store.ensure_chain([llm.user("Is it high?"), llm.assistant("It is.")])
    first = load_chain(store, tip).hashes[0]
    store.db.execute("pragma foreign_keys = off")
    store.db["messages"].delete(first)

    for load in (store.load_chain, lambda hash: load_chain(store, hash)):
        with pytest.raises(KeyError, match=first):
            load(tip)


def test_a_fragment_that_was_deleted_is_left_out_as_llm_leaves_it_out(store: LogStore) -> None:
    tip = store.ensure_chain([llm.user("The tide table, please.")], fragments=["tide table"])
    store.db.execute("pragma foreign_keys = off")
    store.db["fragments"].delete_where()

    assert load_chain(store, tip).messages == store.load_chain(tip) == [llm.user("The , please.")]


@pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.10 can't set the limit"
)
def test_a_conversation_may_be_longer_than_a_statement_may_have_parameters(
    store: LogStore,
) -> None:
    messages = [llm.user("Is it high?"), llm.assistant("It is.")] * 20
    tip = store.ensure_chain(messages)

    store.db.conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 20)

    assert load_chain(store, tip).messages == messages
