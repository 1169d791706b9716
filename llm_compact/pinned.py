"""The rows of `compact_pins`: what is pinned to a conversation, and what a pin can be made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

import sqlite_utils
from llm.migrations import migrate
from llm.utils import monotonic_ulid

from .chain import chain_at, fragments_of
from .conversation import marker_of, requests, text_of
from .errors import ConversationError
from .log import migrated, row_of, writing
from .transcript import by_reference


@dataclass(frozen=True)
class Said:
    """What was said in a turn."""

    conversation_id: str
    text: str
    message_hash: str | None
    "None in a log of an older llm, which stores no messages."


def read_said(db: sqlite_utils.Database, response_id: str, *, answer: bool) -> Said | None:
    """The prompt or the answer of a turn, None where the log has no such turn.

    A fragment is told by its beginning: it is a document, not something that was said.
    """
    with migrated(db) as readable:
        turn = row_of(readable, "select * from turns where id = ?", response_id)
        if turn is None:
            old = row_of(readable, "select * from responses where id = ?", response_id)
            text = old and (old["response"] if answer else old["prompt"])
            return Said(old["conversation_id"], text or "", None) if old else None
        tip = turn["tip_message_hash" if answer else "parent_message_hash"]
        if tip is None:
            return Said(turn["thread_id"], "", None)
        chain = chain_at(readable, tip)
        # The input of a later round of a tool loop ends with what the tools returned.
        asked = requests(chain.messages)
        index = len(chain.messages) - 1 if answer or not asked else asked[-1]
        message = chain.messages[index]
        if marker_of(message) or not (answer or asked):
            return Said(turn["thread_id"], "", None)
        (said,) = by_reference([message], fragments_of(readable, tip))
        return Said(turn["thread_id"], text_of(said), chain.hashes[index])


def pinned_texts(db: sqlite_utils.Database, conversation_id: str) -> tuple[str, ...]:
    """What is pinned to a conversation and to the generations before it, oldest first."""
    return tuple(dict.fromkeys(row["text"] for row in read_pins(db, conversation_id)))


def read_pins(
    db: sqlite_utils.Database, conversation_id: str | None = None
) -> list[dict[str, Any]]:
    """The rows of `compact_pins` that hold in a conversation, or all of them, oldest first."""
    if not db.table("compact_pins").exists():
        return []
    if conversation_id is None:
        return list(db.query("select * from compact_pins order by id"))
    return list(
        db.query(
            "with recursive lineage(id) as (select ? union "
            "select source_conversation_id from compactions "
            "join lineage on compactions.conversation_id = lineage.id) "
            "select * from compact_pins where conversation_id in (select id from lineage) "
            "order by id",
            [conversation_id],
        )
    )


def store_pins(db: sqlite_utils.Database, pins: Sequence[Said]) -> list[str]:
    """Pin some texts to their conversations, all or none. Returns the ids of the pins."""
    migrate(db)  # type: ignore[no-untyped-call]
    with writing(db):
        return insert_pins(db, pins)


def remove_pins(db: sqlite_utils.Database, ids: Sequence[str]) -> None:
    """Raises `ConversationError` for an id that is none; then all pins stay."""
    known = {row["id"] for row in read_pins(db)}
    for id in ids:
        if id not in known:
            raise ConversationError(f"No pin found with id={id}. See llm compact pins --all")
    with writing(db):
        for id in ids:
            db.execute("delete from compact_pins where id = ?", [id])


def insert_pins(db: sqlite_utils.Database, pins: Sequence[Said]) -> list[str]:
    """Pin the texts within a transaction that writes more than these."""
    ids = [str(monotonic_ulid()).lower() for _ in pins]
    date = datetime.now(timezone.utc).isoformat()
    for id, pin in zip(ids, pins, strict=True):
        db.table("compact_pins").insert({"id": id, **asdict(pin), "datetime_utc": date})
    return ids
