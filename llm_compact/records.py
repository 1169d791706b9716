"""What the log says about its compactions: their records, and the lineage that they make."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import sqlite_utils
from llm.parts import Message

from .conversation import generation_of, history_of, text_of
from .errors import ConversationError
from .log import has_conversation, newest_conversation, read_chain
from .placeholder import PRUNE_TOOLS
from .schema import Record
from .source import read_source


@dataclass(frozen=True)
class LoggedCompaction(Record):
    """A row of the `compactions` table, as far as its columns go, and the conversation's name.

    A column that an older version did not write yet is None.
    """

    turn_id: str
    conversation_id: str
    source_conversation_id: str
    name: str | None


def read_compactions(
    db: sqlite_utils.Database, conversation_id: str | None = None
) -> list[LoggedCompaction]:
    """The compactions of a log, or of the lineage of one conversation, newest first.

    Raises `ConversationError` for a conversation that is not there.
    """
    found = _all_compactions(db)
    if conversation_id is None:
        return found
    family = _family(found, conversation_id)
    compactions = [compaction for compaction in found if compaction.conversation_id in family]
    # An original that was deleted is still known by what came from it.
    if not compactions and not has_conversation(db, conversation_id):
        raise ConversationError(f"No conversation found with id={conversation_id}")
    return compactions


def _all_compactions(db: sqlite_utils.Database) -> list[LoggedCompaction]:
    if not db.table("compactions").exists():
        return []
    return [
        _from_row(row)
        for row in db.query(
            "select compactions.*, threads.name from compactions "
            "left join threads on threads.id = conversation_id order by turn_id desc"
        )
    ]


def find_compaction(db: sqlite_utils.Database, id: str | None = None) -> LoggedCompaction:
    """The compaction of this turn, else the newest that led to this conversation.

    Where none led to it, it is an original, and the newest of all that came from it is meant.
    Without an id it is about the conversation that `llm -c` would continue. Raises
    `ConversationError` where there is none.
    """
    wanted = id or newest_conversation(db)
    if wanted is None:
        raise ConversationError("No conversations found in the log")
    found = read_compactions(db)
    for key in ("turn_id", "conversation_id"):
        for compaction in found:
            if getattr(compaction, key) == wanted:
                return compaction
    origins = _origins(found)
    for compaction in found:
        if wanted in _ancestors(origins, compaction.conversation_id):
            return compaction
    raise ConversationError(
        f"No compaction found of or as {wanted}. See llm compact list for those that there are"
    )


def lineage_of(db: sqlite_utils.Database, conversation_id: str) -> list[str]:
    """The conversations that led to this one, from the original on, and itself."""
    return _ancestors(_origins(read_compactions(db)), conversation_id)


def read_summary(db: sqlite_utils.Database, compaction: LoggedCompaction) -> str:
    """The summary of a compaction, as its turn has it; empty where there is none."""
    if compaction.summarizer == PRUNE_TOOLS:
        return ""
    row = next(
        db.query("select tip_message_hash from turns where id = ?", [compaction.turn_id]), None
    )
    if row is None:
        raise ConversationError(f"The turn {compaction.turn_id} is not in the log any more")
    return text_of(read_chain(db, row["tip_message_hash"])[-1])


def read_context(db: sqlite_utils.Database, compaction: LoggedCompaction) -> list[Message]:
    """The compacted conversation with all that was said in it since, as its model gets it."""
    source = read_source(db, compaction.conversation_id)
    if _is_of(source.messages, compaction):
        return list(source.messages)
    # The conversation was compacted again under the same id, amid a prompt.
    for row in db.query(
        "select source_tip_hash from compactions where source_conversation_id = ? order by turn_id",
        [compaction.conversation_id],
    ):
        chain = read_chain(db, row["source_tip_hash"])
        if _is_of(chain, compaction):
            return chain
    raise ConversationError(f"Conversation {compaction.conversation_id} was changed since")


def _is_of(messages: Sequence[Message], compaction: LoggedCompaction) -> bool:
    if compaction.summarizer == PRUNE_TOOLS:
        return generation_of(messages) == compaction.generation
    summary = history_of(messages).summary
    return summary is not None and summary.marker.compaction == compaction.turn_id


def _family(compactions: Sequence[LoggedCompaction], conversation_id: str) -> set[str]:
    """The conversation, those that it came from, and those that came from it."""
    origins = _origins(compactions)
    ancestors = _ancestors(origins, conversation_id)
    return {
        id for id in origins if id in ancestors or conversation_id in _ancestors(origins, id)
    } | {*ancestors}


def _ancestors(origins: Mapping[str, str], conversation_id: str) -> list[str]:
    """From the original on to the conversation itself."""
    lineage = [conversation_id]
    while (source := origins.get(lineage[0])) and source not in lineage:
        lineage.insert(0, source)
    return lineage


def _origins(compactions: Sequence[LoggedCompaction]) -> dict[str, str]:
    """Which conversation each compacted one came from; a compaction in place is no origin."""
    return {
        compaction.conversation_id: compaction.source_conversation_id
        for compaction in compactions
        if compaction.conversation_id != compaction.source_conversation_id
    }


def _from_row(row: Mapping[str, Any]) -> LoggedCompaction:
    values: dict[str, Any] = {field.name: row.get(field.name) for field in fields(LoggedCompaction)}
    values["lost"] = _lost(row.get("lost"))
    return LoggedCompaction(**values)


def _lost(text: str | None) -> list[dict[str, Any]] | None:
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(found, list):
        return None
    return [item if isinstance(item, dict) else {"value": item} for item in found]
