"""The log database: how it is opened, read and written, and which conversations it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llm
import sqlite_utils
from llm.migrations import MIGRATIONS, migrate
from llm.parts import Message

from . import legacy
from .chain import chain_at, hash_of
from .errors import StoreError
from .schema import migrations

LOCK_TIMEOUT_MS = 10_000


@contextmanager
def open_log(path: Path) -> Iterator[sqlite_utils.Database]:
    """A connection of our own to an existing log. Raises `StoreError`; creates nothing."""
    try:
        exists = path.exists()
    except OSError as ex:
        raise StoreError(f"{path}: {ex.strerror}") from ex
    if not exists:
        raise StoreError(f"No log database found at {path}")
    try:
        with sqlite_utils.Database(path) as db:
            db.execute(f"pragma busy_timeout = {LOCK_TIMEOUT_MS}")
            yield db
    except sqlite3.Error as ex:
        raise StoreError(f"{path}: {ex}. Nothing was written") from ex


def create_log(path: Path) -> None:
    """Make sure that there is a log, as llm does. Raises `StoreError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sqlite_utils.Database(path).close()
    except (OSError, sqlite3.Error) as ex:
        raise StoreError(f"{path}: {ex}") from ex


def check_writable(db: sqlite_utils.Database) -> None:
    """Raises `sqlite3.Error` where nothing could be written, before a summary is paid for."""
    db.conn.execute("begin immediate")
    db.rollback()


@contextmanager
def migrated(db: sqlite_utils.Database) -> Iterator[sqlite_utils.Database]:
    """The log itself, or a copy in memory if its tables are those of an older llm.

    `LogStore` migrates what it is given, and whoever only reads must not change the log.
    """
    applied = db.table("_llm_migrations")
    names = {row["name"] for row in applied.rows} if applied.exists() else set()
    if names.issuperset(migration.__name__ for migration in MIGRATIONS):
        yield db
        return
    with sqlite_utils.Database(memory=True) as copy:
        # backup() waits for other writers without end, a read of our own as long as we said.
        db.conn.execute("begin")
        try:
            db.conn.execute("select count(*) from sqlite_master").fetchone()
            db.conn.backup(copy.conn)
        finally:
            db.conn.rollback()
        migrate(copy)  # type: ignore[no-untyped-call]
        yield copy


@contextmanager
def writing(db: sqlite_utils.Database) -> Iterator[None]:
    """One transaction, with our tables in place."""
    # BEGIN IMMEDIATE waits for other writers. atomic() alone begins deferred, and a read that
    # turns into a write then fails at once when somebody else is writing.
    db.conn.execute("begin immediate")
    try:
        migrations.apply(db)
        yield
        db.commit()
    except BaseException:
        db.rollback()
        raise


def newest_conversation(db: sqlite_utils.Database) -> str | None:
    """The conversation that `llm -c` continues, by the choice of llm.cli.load_conversation()."""
    # A log of an older llm has no threads yet, and an empty one nothing at all.
    tables = [name for name in ("threads", "conversations") if db.table(name).exists()]
    if not tables:
        return None
    ids = " union ".join(f"select id from {name}" for name in tables)
    row = row_of(db, f"{ids} order by id desc limit 1")
    return row["id"] if row else None


def newest_generation(db: sqlite_utils.Database, conversation_id: str) -> str:
    """The conversation that this one was compacted into, and so on, if nothing was said since.

    A compaction amid a prompt is one of a state that has more messages than its source had.
    """
    if not db.table("compactions").exists():
        return conversation_id
    seen = [conversation_id]
    while True:
        tip = newest_message(db, seen[-1])
        row = row_of(
            db,
            "select conversation_id from compactions where source_conversation_id = ? "
            "and conversation_id != source_conversation_id "
            "and conversation_id in (select id from threads) and exists ("
            "with recursive chain(hash) as (select source_tip_hash union all "
            "select parent_hash from messages join chain using (hash) "
            "where parent_hash is not null) select 1 from chain where hash = ?) "
            "order by turn_id desc limit 1",
            seen[-1],
            tip or "",
        )
        if row is None or row["conversation_id"] in seen:
            return seen[-1]
        seen.append(row["conversation_id"])


def compacted_as(db: sqlite_utils.Database, tip: str) -> str | None:
    """The newest conversation that a state was compacted into, of those not deleted since."""
    if not db.table("compactions").exists():
        return None
    row = row_of(
        db,
        "select conversation_id from compactions where source_tip_hash = ? "
        "and conversation_id in (select id from threads) order by turn_id desc limit 1",
        tip,
    )
    return row["conversation_id"] if row else None


def messages_kept(db: sqlite_utils.Database, conversation_id: str) -> int | None:
    """How many messages stood behind the newest summary of a conversation when it was written."""
    if not db.table("compactions").exists():
        return None
    row = row_of(
        db,
        "select messages_kept from compactions where conversation_id = ? "
        "order by turn_id desc limit 1",
        conversation_id,
    )
    return row["messages_kept"] if row else None


def has_conversation(db: sqlite_utils.Database, conversation_id: str) -> bool:
    """Whether the log has a conversation with this id."""
    with migrated(db) as readable:
        return any(
            row_of(readable, f"select id from {table} where id = ?", conversation_id)
            for table in ("threads", "conversations")
        )


def read_chain(db: sqlite_utils.Database, tip: str) -> list[Message]:
    """The messages up to the one with this hash."""
    with migrated(db) as readable:
        return chain_at(readable, tip).messages


def thread_tip(db: sqlite_utils.Database, conversation_id: str) -> str | None:
    """The hash of the newest message of a conversation that has a row in `threads`."""
    row = row_of(db, "select tip_message_hash from threads where id = ?", conversation_id)
    return row["tip_message_hash"] if row else None


def newest_message(db: sqlite_utils.Database, conversation_id: str) -> str | None:
    """The hash of the newest message of a conversation, whichever llm logged it."""
    return thread_tip(db, conversation_id) or hash_of(legacy_messages(db, conversation_id))


def legacy_messages(db: sqlite_utils.Database, conversation_id: str) -> list[Message]:
    """The messages of a conversation that an older llm logged."""
    return legacy.messages_of(db, conversation_id, LoggedModel("logged"))


class LoggedModel(llm.Model):
    """The name of a model in the log, which may not be installed any more."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def execute(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        raise NotImplementedError("a model of the log answers nothing")


def row_of(db: sqlite_utils.Database, sql: str, *parameters: str) -> dict[str, Any] | None:
    """The first row that a query finds."""
    return next(iter(db.query(sql, list(parameters))), None)
