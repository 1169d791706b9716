"""A chain of messages from the log, in a few statements where llm takes one for each message.

It reads llm's tables, which its docs call public, and gives what `LogStore.load_chain` gives.
Wherever they hold something that is not known here, llm itself reads the chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import llm
import sqlite_utils
from llm.logs import LogStore, message_hash
from llm.parts import AttachmentPart, Message, Part, ToolResultPart

COLUMNS = {
    "messages": {"hash", "parent_hash", "role", "provider_metadata"},
    "parts": {"id", "message_hash", "position", "type", "tool_name", "text", "payload"},
    "fragments": {"id", "hash", "content", "datetime_utc", "source"},
    "attachments": {"id", "type", "path", "url", "content"},
}
"All columns of the tables that a chain is read from."

_ANY = {"provider_metadata"}
_TEXT = _ANY | {"text", "text_ref"}
_TOOL = _ANY | {"name", "tool_call_id", "server_executed"}
KEYS = {
    "text": _TEXT,
    "reasoning": _TEXT | {"redacted"},
    "tool_call": _TOOL | {"arguments"},
    "tool_result": _TOOL | {"output", "exception", "attachments"},
    "attachment": _ANY | {"attachment"},
}
"All that the payload of a part may hold, by its type."

REFERENCES = {"text_ref", "attachment", "attachments"}
"Those of them that lead to other tables."

Payload = dict[str, Any]


@dataclass(frozen=True)
class Chain:
    """Messages, oldest first, and the hash that each has in the log."""

    messages: list[Message]
    hashes: list[str]


class _UnknownForm(Exception):
    """The log holds what only llm can read."""


def load_chain(store: LogStore, tip: str) -> Chain:
    """The chain that ends with the message `tip`. Raises `KeyError` if the log does not have it."""
    db = store.db
    rows = {
        hash: (parent, role, metadata)
        for hash, parent, role, metadata in db.execute(
            "with recursive chain(hash, parent_hash, role, provider_metadata) as ("
            "select hash, parent_hash, role, provider_metadata from messages where hash = ? "
            "union all select messages.hash, messages.parent_hash, messages.role, "
            "messages.provider_metadata from messages join chain "
            "on messages.hash = chain.parent_hash) select * from chain",
            [tip],
        )
    }
    hashes: list[str] = []
    hash: str | None = tip
    while hash is not None:
        hashes.append(hash)
        hash = rows[hash][0]
    hashes.reverse()
    try:
        parts = _parts(db, hashes)
    except _UnknownForm:
        return Chain(store.load_chain(tip), hashes)
    messages = []
    for hash in hashes:
        _, role, metadata = rows[hash]
        messages.append(Message(role, parts[hash], json.loads(metadata) if metadata else None))
    return Chain(messages, hashes)


def chain_at(db: sqlite_utils.Database, tip: str) -> Chain:
    """The same from a log that has the tables of this llm."""
    return load_chain(LogStore(db), tip)  # type: ignore[no-untyped-call]


def fragments_of(db: sqlite_utils.Database, tip: str) -> list[str]:
    """The fragments that any message of a chain is stored by reference to."""
    return [
        row["content"]
        for row in db.query(
            "with recursive chain(hash) as (select ? union all "
            "select parent_hash from messages join chain using (hash) "
            "where parent_hash is not null) "
            "select distinct fragments.id, content from chain "
            "join parts on parts.message_hash = chain.hash "
            "join part_fragments on part_fragments.part_id = parts.id "
            "join fragments on fragments.id = part_fragments.fragment_id",
            [tip],
        )
    ]


def hashes_of(messages: Sequence[Message]) -> list[str]:
    """The hashes under which the messages stand in the log, or will."""
    hashes: list[str] = []
    for message in messages:
        hashes.append(message_hash(message, hashes[-1] if hashes else None))
    return hashes


def hash_of(messages: Sequence[Message]) -> str | None:
    """The hash under which the last of the messages will stand in the log."""
    return hashes_of(messages)[-1] if messages else None


def _parts(db: sqlite_utils.Database, hashes: Sequence[str]) -> dict[str, list[Part]]:
    """The parts of each message."""
    if any(set(db.table(table).columns_dict) != known for table, known in COLUMNS.items()):
        raise _UnknownForm
    # The hashes as JSON, because the number of parameters is limited.
    rows = db.execute(
        "select position, message_hash, parts.type, text, payload "
        "from json_each(?) join parts on message_hash = value",
        [json.dumps(hashes)],
    ).fetchall()
    rows.sort(key=itemgetter(0))
    payloads = [_payload(*row[2:]) for row in rows]
    referring = [payload for payload in payloads if not REFERENCES.isdisjoint(payload)]
    fragments = {
        row["id"]: row["content"] for row in _rows(db, "fragments", map(_fragment_ids, referring))
    }
    attachments = {
        row["id"]: llm.Attachment.from_row(row)  # type: ignore[no-untyped-call]
        for row in _rows(db, "attachments", map(_attachment_ids, referring))
    }
    parts: dict[str, list[Part]] = {hash: [] for hash in hashes}
    for row, payload in zip(rows, payloads, strict=True):
        parts[row[1]].append(_part(payload, fragments, attachments))
    return parts


def _payload(type: str, text: str | None, stored: str | None) -> Payload:
    """A part as `Part.from_dict` takes it, except that it may refer to other tables."""
    payload: Payload = json.loads(stored) if stored else {}
    if type not in KEYS or not payload.keys() <= KEYS[type]:
        raise _UnknownForm
    payload["type"] = type
    if text is not None:
        payload["text"] = text
    return payload


def _part(
    payload: Payload, fragments: Mapping[int, str], attachments: Mapping[str, llm.Attachment]
) -> Part:
    if REFERENCES.isdisjoint(payload):
        return Part.from_dict(payload)  # type: ignore[arg-type]
    pieces = payload.get("text_ref")
    if pieces is not None:
        payload["text"] = "".join(
            piece["literal"] if "literal" in piece else fragments.get(piece["fragment"], "")
            for piece in pieces
        )
    attached = [attachments[id] for id in _attachment_ids(payload)]
    own = {key: value for key, value in payload.items() if key not in REFERENCES}
    part = Part.from_dict(own)  # type: ignore[arg-type]
    if isinstance(part, AttachmentPart):
        part.attachment = attached[0]
    elif isinstance(part, ToolResultPart):
        part.attachments = attached
    return part


def _fragment_ids(payload: Payload) -> list[int]:
    pieces = payload.get("text_ref") or []
    if any(piece.keys() not in ({"literal"}, {"fragment"}) for piece in pieces):
        raise _UnknownForm
    return [piece["fragment"] for piece in pieces if "fragment" in piece]


def _attachment_ids(payload: Payload) -> list[str]:
    single = [payload["attachment"]] if "attachment" in payload else []
    attached = single or payload.get("attachments") or []
    if any(reference.keys() != {"id"} for reference in attached):
        raise _UnknownForm
    return [reference["id"] for reference in attached]


def _rows(
    db: sqlite_utils.Database, table: str, ids: Iterable[Iterable[int] | Iterable[str]]
) -> Iterator[dict[str, Any]]:
    wanted = list({id for some in ids for id in some})
    return db.query(
        f"select * from {table} where id in (select value from json_each(?))", [json.dumps(wanted)]
    )
