"""What we rely on in llm beyond its documented API. A failure here means that llm has changed."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import llm
import llm.cli
import llm.utils
import pytest
import sqlite_utils
from llm.logs import LogStore
from llm.parts import (
    AttachmentPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from scripted import Plugin

from llm_compact.chain import COLUMNS, KEYS
from llm_compact.log import LoggedModel

MARK = {"llm_compact": {"generation": 1, "compaction": "x", "head": 2}}


@pytest.fixture
def store(user_path: Path) -> LogStore:
    user_path.mkdir()
    return LogStore(sqlite_utils.Database(user_path / "logs.db"))


def logged(store: LogStore, thread_id: str, **extra: object) -> str:
    response = llm.Response.from_dict(
        {
            "model": "chatty",
            "prompt": {"messages": [llm.user("Sum up").to_dict()]},
            "messages": [llm.assistant("Summary").to_dict()],
            "usage": {"input": 5, "output": 2},
            **extra,  # type: ignore[typeddict-item]
        },
        model=LoggedModel("chatty"),
    )
    response.set_resolved_model("summer")
    return store.log(response, thread_id)


def test_the_store_has_the_methods_that_we_call() -> None:
    assert list(inspect.signature(LogStore.ensure_chain).parameters) == [
        "self",
        "messages",
        "parent",
        "fragments",
    ]
    assert {"name", "forked_from", "id"} <= inspect.signature(
        LogStore.create_thread
    ).parameters.keys()
    assert {"response", "thread_id"} <= inspect.signature(LogStore.log).parameters.keys()
    for name in ("load_chain", "thread_tip", "thread_messages", "verify"):
        assert callable(getattr(LogStore, name))


def test_the_tables_have_the_columns_that_we_read_and_write(store: LogStore) -> None:
    columns = {table: set(store.db[table].columns_dict) for table in store.db.table_names()}

    assert {"id", "name", "tip_message_hash", "forked_from"} <= columns["threads"]
    assert {"id", "thread_id", "model", "resolved_model", "duration_ms", "datetime_utc"} <= (
        columns["turns"]
    )
    assert {"turn_id", "tool_id", "instance_id"} <= columns["turn_tools"]
    assert {"part_id", "fragment_id"} <= columns["part_fragments"]
    assert {"id"} <= columns["conversations"]


def test_the_tables_that_we_read_chains_from_have_these_columns_only(store: LogStore) -> None:
    # With others llm reads the chain, which takes twice as long.
    assert {table: set(store.db[table].columns_dict) for table in COLUMNS} == COLUMNS


def test_there_are_no_parts_but_those_that_we_read(store: LogStore) -> None:
    picture = llm.Attachment(type="image/png", content=b"chart")
    more: dict[str, Any] = {"tool_call_id": "1", "server_executed": True, "provider_metadata": MARK}
    parts: list[Part] = [
        TextPart(text="tides", provider_metadata=MARK),
        ReasoningPart(text="tides", redacted=True, provider_metadata=MARK),
        ToolCallPart(name="lookup", arguments={"q": "tides"}, **more),
        ToolResultPart(name="lookup", output="", exception="e", attachments=[picture], **more),
        AttachmentPart(attachment=picture, provider_metadata=MARK),
    ]
    tip = store.ensure_chain([llm.Message(role="user", parts=parts)], fragments=["tide"])
    rows = list(store.db["parts"].rows_where("message_hash = ?", [tip]))

    assert set(Part.__subclasses__()) == set(map(type, parts))
    assert {row["type"] for row in rows} == KEYS.keys()
    # All fields are set, so all that a payload can hold is there.
    for part, row in zip(parts, rows, strict=True):
        stored = set(json.loads(row["payload"]))
        assert stored <= KEYS[row["type"]]
        assert {field.name for field in fields(part)} - {"text"} <= KEYS[row["type"]]  # type: ignore[arg-type]


def test_a_mark_on_a_part_is_stored_hashed_and_loaded(store: LogStore) -> None:
    marked = llm.Message(role="user", parts=[TextPart(text="Hi", provider_metadata=MARK)])
    plain_tip = store.ensure_chain([llm.user("Hi")])

    tip = store.ensure_chain([marked])

    assert tip != plain_tip
    assert store.load_chain(tip) == [marked]
    assert store.verify() == []


def test_a_response_from_a_dict_is_logged_with_usage_and_resolved_model(store: LogStore) -> None:
    thread_id = store.create_thread(name="t")

    turn_id = logged(store, thread_id, id="01given")

    turn = store.db["turns"].get(turn_id)
    assert turn_id == "01given"
    assert (turn["model"], turn["resolved_model"]) == ("chatty", "summer")
    assert (turn["input_tokens"], turn["output_tokens"]) == (5, 2)
    assert turn["thread_id"] == thread_id


def test_a_chain_that_is_stored_already_is_not_stored_again(store: LogStore) -> None:
    chain = [llm.user("Sum up"), llm.assistant("Summary")]
    tip = store.ensure_chain(chain, fragments=["um u"])
    count = store.db["messages"].count

    assert store.ensure_chain(chain) == tip
    assert store.db["messages"].count == count


def test_llm_continues_the_thread_with_the_largest_id(store: LogStore, models: Plugin) -> None:
    for id in ("01aaa", "01ccc", "01bbb"):
        store.create_thread(name=id, id=id)
        logged(store, id)

    conversation = llm.cli.load_conversation(None)

    assert conversation is not None and conversation.id == "01ccc"
    assert conversation.model.model_id == "chatty"


def test_the_tip_of_a_thread_may_lie_behind_its_last_turn(store: LogStore, models: Plugin) -> None:
    thread_id = store.create_thread(name="t")
    logged(store, thread_id)
    tail = [llm.user("And now?"), llm.assistant("Now this.")]
    tip = store.ensure_chain(tail, parent=store.thread_tip(thread_id))
    store.db["threads"].update(thread_id, {"tip_message_hash": tip})

    conversation = llm.cli.load_conversation(None)

    assert conversation is not None
    assert conversation.loaded_messages == [llm.user("Sum up"), llm.assistant("Summary"), *tail]


def test_ids_are_ulids_that_grow() -> None:
    ids = [str(llm.utils.monotonic_ulid()) for _ in range(100)]

    assert ids == sorted(ids)
    assert len(set(map(len, ids))) == 1


def test_names_that_we_import() -> None:
    assert llm.utils.token_usage_string(1_000, 5, None) == "1,000 input, 5 output"
    assert llm.cli.get_model_options("chatty") == {}
    assert isinstance(llm.user_dir(), Path)
