"""Our own tables in llm's log: `compactions` and `compact_pins`, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlite_utils
from sqlite_utils.migrations import Migrations


@dataclass(frozen=True)
class Record:
    """What the `compactions` table keeps about a compaction, besides ids and the source."""

    generation: int
    trigger: str
    summarizer: str
    prompt_version: str
    instructions: str | None
    messages_summarized: int
    messages_kept: int
    exchanges_summarized: int
    exchanges_kept: int
    tokens_before: int
    tokens_after: int
    summary_tokens: int
    input_tokens: int | None
    output_tokens: int | None
    calls: int
    duration_ms: int
    datetime_utc: str
    values_found: int | None
    "Exact values in the summarized messages that the user, the assistant or a call used."
    values_lost: int | None
    "How many of them are neither in the summary nor in the messages kept."
    lost: list[dict[str, str]] | None
    "These, each with its kind, the most used first. All three are None for a pruning."
    check_model: str | None = field(default=None, kw_only=True)
    "Who looked for facts of the head in the new conversation, if anybody did."
    check_asked: int | None = field(default=None, kw_only=True)
    check_passed: int | None = field(default=None, kw_only=True)
    check_repairs: str | None = field(default=None, kw_only=True)
    "What it took: `facts`, `tail` and `summary`, with commas between; empty for nothing."
    cached_tokens: int | None = field(default=None, kw_only=True)
    "What of the summarizer's input its provider had in its cache."


migrations = Migrations("llm_compact")


@migrations()
def create_compactions(db: sqlite_utils.Database) -> None:
    db.table("compactions").create(
        {
            "turn_id": str,
            "conversation_id": str,
            "source_conversation_id": str,
            "source_tip_hash": str,
            "generation": int,
            "trigger": str,
            "summarizer": str,
            "prompt_version": str,
            "instructions": str,
            "messages_summarized": int,
            "messages_kept": int,
            "exchanges_summarized": int,
            "exchanges_kept": int,
            "tokens_before": int,
            "tokens_after": int,
            "summary_tokens": int,
            "input_tokens": int,
            "output_tokens": int,
            "calls": int,
            "duration_ms": int,
            "datetime_utc": str,
        },
        pk="turn_id",
        # The source may be a conversation of an older llm, which has no row in threads.
        foreign_keys=[
            ("turn_id", "turns", "id"),
            ("conversation_id", "threads", "id"),
            ("source_tip_hash", "messages", "hash"),
        ],
    )
    db.table("compactions").create_index(["source_tip_hash"])
    db.table("compactions").create_index(["source_conversation_id"])


@migrations()
def create_compact_pins(db: sqlite_utils.Database) -> None:
    db.table("compact_pins").create(
        {
            "id": str,
            "conversation_id": str,
            "message_hash": str,
            "text": str,
            "datetime_utc": str,
        },
        pk="id",
        foreign_keys=[("message_hash", "messages", "hash")],
    )
    db.table("compact_pins").create_index(["conversation_id"])


@migrations()
def add_values(db: sqlite_utils.Database) -> None:
    table = db.table("compactions")
    table.add_column("values_found", int)
    table.add_column("values_lost", int)
    table.add_column("lost", str)


@migrations()
def add_check_to_compactions(db: sqlite_utils.Database) -> None:
    for name, kind in (
        ("check_model", str),
        ("check_asked", int),
        ("check_passed", int),
        ("check_repairs", str),
    ):
        db.table("compactions").add_column(name, kind)


@migrations()
def add_cached_tokens_to_compactions(db: sqlite_utils.Database) -> None:
    db.table("compactions").add_column("cached_tokens", int)
