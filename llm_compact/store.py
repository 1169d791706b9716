"""The log database: reading a conversation, and writing a compacted one with its record.

llm's `LogStore` is used here, and in chain.py, which reads for it, and nowhere else. Its docs call
the tables public and the class internal, so tests/test_contract.py holds what we rely on.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import llm
import sqlite_utils
from llm.logs import LogStore, message_hash
from llm.migrations import MIGRATIONS, migrate
from llm.parts import AttachmentPart, Message, ToolResultPart
from llm.serialization import UsageDict
from llm.utils import monotonic_ulid
from sqlite_utils.migrations import Migrations

from . import legacy
from .chain import Chain, load_chain
from .conversation import (
    Marker,
    compacted_chain,
    history_of,
    is_request,
    marker_of,
    requests,
    text_of,
)
from .errors import AlreadyCompacted, ConversationError, StoreError
from .placeholder import pruned_hashes, restored
from .sizes import message_sizes
from .tokens import UNKNOWN, Calibration, Reported, calibrate, reported_usage
from .transcript import by_reference

LOCK_TIMEOUT_MS = 10_000

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


@dataclass(frozen=True)
class Live:
    """What is different about a conversation that is going on in this process."""

    pending: int
    "How many of its last messages are a prompt without an answer: none or one."
    in_place: bool
    "Whether it goes on under its own id: nothing of it was logged, or this prompt began it."


@dataclass(frozen=True)
class Source:
    """A conversation as the log has it, or as it is going on."""

    id: str
    name: str | None
    model_id: str
    tip: str
    "Hash of its newest message: what a compaction of it is a compaction of."
    messages: tuple[Message, ...]
    originals: tuple[Message, ...]
    "The messages without any compaction: those of all generations before, then its own."
    fragments: tuple[str, ...]
    "The texts of the fragments in all of these messages."
    compacted_as: str | None
    "Id of the newest conversation that this very state was compacted into, if there is one."
    reported: tuple[Reported, ...] = ()
    "What the conversation's model counted in its turns, oldest first."
    known: Calibration = UNKNOWN
    "How it counts, by what it reported in the generations before, where its turns say too little."
    pins: tuple[str, ...] = ()
    "What the user wants to keep word for word, here and in the generations before."
    live: Live | None = None
    "Present if it is not read from the log but going on."

    @property
    def pending(self) -> int:
        """How many of its last messages are a prompt without an answer, which llm logs itself."""
        return self.live.pending if self.live else 0


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


@dataclass(frozen=True)
class Draft:
    """A compaction before it is stored: the new conversation, and what is to be known of it."""

    turn_id: str
    request: str
    "The fixed words of the user message in front of the summary."
    summary: str
    tail: tuple[Message, ...]
    stands_for: int
    "How many original messages the summary replaces, over all generations."
    record: Record
    pins: tuple[str, ...] = ()
    "What is pinned to the source with this compaction."

    def chain(self, source: Source) -> list[Message]:
        """The messages of the new conversation."""
        marker = Marker(self.record.generation, self.turn_id, self.stands_for)
        system = history_of(source.messages).system
        return compacted_chain(system, self.request, self.summary, self.tail, marker)


@dataclass(frozen=True, kw_only=True)
class PrunedDraft(Draft):
    """A compaction that shortens old tool output and has no summary: each message is there.

    Its turn shows the last answer, because llm needs one, and that is where one goes on. `tail`
    is what comes after that.
    """

    messages: tuple[Message, ...]
    originals: Mapping[str, Message]
    "The messages that were shortened, as they were, by their hash."

    def chain(self, source: Source) -> list[Message]:
        return list(self.messages)


@dataclass(frozen=True)
class Stored:
    """Where a compaction went."""

    conversation_id: str
    is_newest: bool
    "Whether `llm -c` goes on with it. Ids that are no ULIDs may sort above ours."


class LoggedModel(llm.Model):
    """The name of a model in the log, which may not be installed any more."""

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def execute(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        raise NotImplementedError("a model of the log answers nothing")


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


def read_source(db: sqlite_utils.Database, conversation_id: str | None) -> Source:
    """Read a conversation, or without an id the one that `llm -c` would continue.

    Raises `ConversationError` if there is none, or if it has no messages.
    """
    with _migrated(db) as readable:
        return _read(readable, conversation_id)


@contextmanager
def _migrated(db: sqlite_utils.Database) -> Iterator[sqlite_utils.Database]:
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


def _read(db: sqlite_utils.Database, conversation_id: str | None) -> Source:
    store = LogStore(db)  # type: ignore[no-untyped-call]
    if conversation_id is None:
        conversation_id = newest_conversation(db)
    if conversation_id is None:
        raise ConversationError("No conversations found in the log")
    # In this order, as llm.cli.load_conversation() does: a conversation of an older llm that went
    # on since has rows in both tables.
    row = _row(
        db,
        "select name, coalesce(model, (select model from responses where conversation_id = "
        "conversations.id order by id desc limit 1)) as model from conversations where id = ?",
        conversation_id,
    ) or _row(
        db,
        "select name, (select model from turns where thread_id = threads.id "
        "order by id desc limit 1) as model from threads where id = ?",
        conversation_id,
    )
    if row is None:
        raise ConversationError(f"No conversation found with id={conversation_id}")
    tip = _thread_tip(db, conversation_id)
    chain = load_chain(store, tip) if tip else Chain(_legacy_messages(db, conversation_id), [])
    messages = chain.messages
    if row["model"] is None or not messages:
        raise ConversationError(f"Conversation {conversation_id} is empty")
    messages = [_without_lookups(message) for message in messages]
    tip = tip or _hash_of(messages)
    assert tip is not None
    done = _compaction_of(db, tip)
    reported = _reported(db, conversation_id, row["model"], chain)
    return Source(
        id=conversation_id,
        name=row["name"],
        model_id=row["model"],
        tip=tip,
        messages=tuple(messages),
        originals=tuple(_originals(db, store, messages)),
        fragments=tuple(_all_fragments(db, conversation_id, tip, messages)),
        compacted_as=done["conversation_id"] if done else None,
        reported=tuple(reported),
        known=_known(db, row["model"], messages, reported),
        pins=pinned_texts(db, conversation_id),
    )


def read_live(
    db: sqlite_utils.Database | None,
    conversation_id: str,
    model_id: str,
    messages: Sequence[Message],
    *,
    name: str | None = None,
    begun_here: bool = False,
    fragments: Sequence[str] = (),
    originals: Sequence[Message] | None = None,
    pruned: Mapping[str, Message] | None = None,
) -> Source:
    """A conversation that is going on, with what its log adds to that, if there is one.

    `begun_here` says that the prompt in progress began this conversation. `fragments` are those
    that the log may not know yet, `originals` the messages without any compaction, where somebody
    remembers them better than a log does, and `pruned` those of them whose tool output was
    shortened, by their hash.
    """
    said = restored(messages, (pruned or {}).get)
    pending = 1 if messages and is_request(messages, len(messages) - 1) else 0
    tip = _hash_of(messages[: len(messages) - pending]) or ""
    known = Source(
        id=conversation_id,
        name=name,
        model_id=model_id,
        tip=tip,
        messages=tuple(messages),
        originals=tuple(history_of(said).body if originals is None else originals),
        fragments=tuple(fragments),
        compacted_as=None,
        live=Live(pending, in_place=True),
    )
    if db is None:
        return known
    with _migrated(db) as readable:
        logged = _thread_tip(readable, conversation_id)
        row = _row(
            readable,
            "select name from threads where id = ? union all "
            "select name from conversations where id = ?",
            conversation_id,
            conversation_id,
        )
        if originals is None:
            store = LogStore(readable)  # type: ignore[no-untyped-call]
            known = replace(known, originals=tuple(_originals(readable, store, said)))
        logged_fragments = _all_fragments(readable, conversation_id, logged or tip, messages)
        return replace(
            known,
            name=row["name"] if row else name,
            fragments=tuple(dict.fromkeys([*fragments, *logged_fragments])),
            live=Live(pending, in_place=begun_here or row is None),
            pins=pinned_texts(readable, conversation_id),
        )


def read_reported(
    db: sqlite_utils.Database, conversation_id: str, model_id: str, messages: Sequence[Message]
) -> list[Reported]:
    """What the provider counted in the logged turns of a conversation that begins like this."""
    with _migrated(db) as readable:
        tip = _thread_tip(readable, conversation_id)
        if tip is None:
            return []
        behind = readable.query(
            "with recursive chain(hash, behind) as (select ?, 0 union all "
            "select parent_hash, behind + 1 from messages join chain using (hash) "
            "where parent_hash is not null) select hash from chain order by behind desc",
            [tip],
        )
        hashes = [row["hash"] for row in behind]
        chain = Chain(list(messages[: len(hashes)]), hashes)
        return _reported(readable, conversation_id, model_id, chain)


def read_known(
    db: sqlite_utils.Database,
    model_id: str,
    messages: Sequence[Message],
    reported: Sequence[Reported],
) -> Calibration:
    """How a model counts, by the generations before these messages; `reported` is of their own."""
    with _migrated(db) as readable:
        return _known(readable, model_id, messages, reported)


def newest_conversation(db: sqlite_utils.Database) -> str | None:
    """The conversation that `llm -c` continues, by the choice of llm.cli.load_conversation()."""
    # A log of an older llm has no threads yet, and an empty one nothing at all.
    tables = [name for name in ("threads", "conversations") if db.table(name).exists()]
    if not tables:
        return None
    ids = " union ".join(f"select id from {name}" for name in tables)
    row = _row(db, f"{ids} order by id desc limit 1")
    return row["id"] if row else None


def read_chain(db: sqlite_utils.Database, tip: str) -> list[Message]:
    """The messages up to the one with this hash."""
    with _migrated(db) as readable:
        return load_chain(LogStore(readable), tip).messages  # type: ignore[no-untyped-call]


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
    with _migrated(db) as readable:
        turn = _row(readable, "select * from turns where id = ?", response_id)
        if turn is None:
            old = _row(readable, "select * from responses where id = ?", response_id)
            text = old and (old["response"] if answer else old["prompt"])
            return Said(old["conversation_id"], text or "", None) if old else None
        tip = turn["tip_message_hash" if answer else "parent_message_hash"]
        if tip is None:
            return Said(turn["thread_id"], "", None)
        chain = load_chain(LogStore(readable), tip)  # type: ignore[no-untyped-call]
        # The input of a later round of a tool loop ends with what the tools returned.
        asked = requests(chain.messages)
        index = len(chain.messages) - 1 if answer or not asked else asked[-1]
        message = chain.messages[index]
        if marker_of(message) or not (answer or asked):
            return Said(turn["thread_id"], "", None)
        (said,) = by_reference([message], _fragments_of(readable, tip))
        return Said(turn["thread_id"], text_of(said), chain.hashes[index])


def has_conversation(db: sqlite_utils.Database, conversation_id: str) -> bool:
    """Whether the log has a conversation with this id."""
    with _migrated(db) as readable:
        return any(
            _row(readable, f"select id from {table} where id = ?", conversation_id)
            for table in ("threads", "conversations")
        )


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
    LogStore(db)  # type: ignore[no-untyped-call]
    with _writing(db):
        return _insert_pins(db, pins)


def remove_pins(db: sqlite_utils.Database, ids: Sequence[str]) -> None:
    """Raises `ConversationError` for an id that is none; then all pins stay."""
    known = {row["id"] for row in read_pins(db)}
    for id in ids:
        if id not in known:
            raise ConversationError(f"No pin found with id={id}. See llm compact pins --all")
    with _writing(db):
        for id in ids:
            db.execute("delete from compact_pins where id = ?", [id])


def _insert_pins(db: sqlite_utils.Database, pins: Sequence[Said]) -> list[str]:
    ids = [str(monotonic_ulid()).lower() for _ in pins]
    date = datetime.now(timezone.utc).isoformat()
    for id, pin in zip(ids, pins, strict=True):
        db.table("compact_pins").insert({"id": id, **asdict(pin), "datetime_utc": date})
    return ids


@contextmanager
def _writing(db: sqlite_utils.Database) -> Iterator[None]:
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


def newest_generation(db: sqlite_utils.Database, conversation_id: str) -> str:
    """The conversation that this one was compacted into, and so on, if nothing was said since.

    A compaction amid a prompt is one of a state that has more messages than its source had.
    """
    if not db.table("compactions").exists():
        return conversation_id
    seen = [conversation_id]
    while True:
        tip = _thread_tip(db, seen[-1]) or _hash_of(_legacy_messages(db, seen[-1]))
        row = _row(
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


def check_writable(db: sqlite_utils.Database) -> None:
    """Raises `sqlite3.Error` where nothing could be written, before a summary is paid for."""
    db.conn.execute("begin immediate")
    db.rollback()


def store_compaction(
    db: sqlite_utils.Database, source: Source, draft: Draft, *, again: bool = False
) -> Stored:
    """Write the compacted conversation: all of it or nothing, in one transaction.

    Raises `AlreadyCompacted` unless `again`, and `ConversationError` when something was said in
    the source since it was read. A conversation that is going on is what this process says it is,
    and only what others made of it is of interest.
    """
    # To migrate an older log is a write, too: not before it is clear that there will be one.
    with _migrated(db) as readable:
        _check_unchanged(readable, source, again)
    store = LogStore(db)  # type: ignore[no-untyped-call]
    with _writing(db):
        _check_unchanged(db, source, again)
        return _write(db, store, source, draft)


def _check_unchanged(db: sqlite_utils.Database, source: Source, again: bool) -> None:
    if source.live:
        made = None if again else compacted_by_others(db, source)
        if made:
            raise already_compacted(made)
        return
    tip = _thread_tip(db, source.id) or _hash_of(_legacy_messages(db, source.id))
    if tip != source.tip:
        raise ConversationError(
            f"Conversation {source.id} went on while it was summarized. Nothing was written; "
            "run the command once more"
        )
    done = _compaction_of(db, source.tip)
    if done and not again:
        raise already_compacted(done["conversation_id"])


def compacted_by_others(db: sqlite_utils.Database, source: Source) -> str | None:
    """The conversation that another process has made of a live one in this very state."""
    if not source.live or source.live.in_place or not db.table("compactions").exists():
        return None
    if source.tip != (_thread_tip(db, source.id) or _hash_of(_legacy_messages(db, source.id))):
        return None
    done = _compaction_of(db, source.tip)
    return done["conversation_id"] if done and done["conversation_id"] != source.id else None


def already_compacted(conversation_id: str) -> AlreadyCompacted:
    return AlreadyCompacted(
        f"Already compacted as {conversation_id}. Go on there with llm -c --cid "
        f"{conversation_id}, or use --again"
    )


def _write(db: sqlite_utils.Database, store: LogStore, source: Source, draft: Draft) -> Stored:
    chain = draft.chain(source)
    first = len(chain) - len(draft.tail)
    prompt, answer = chain[: first - 1], chain[first - 1]
    tail = chain[first : len(chain) - source.pending]
    if _row(db, "select hash from messages where hash = ?", source.tip) is None:
        # Lineage follows hashes, so the source's must lead somewhere.
        said = source.messages[: len(source.messages) - source.pending]
        store.ensure_chain(said, fragments=source.fragments)
    # Before log() stores it: log() would copy the text of fragments that it is not told of.
    store.ensure_chain(prompt, fragments=source.fragments)
    response = llm.Response.from_dict(
        {
            "id": draft.turn_id,
            "model": source.model_id,
            "prompt": {"messages": []},
            "messages": [answer.to_dict()],
            "usage": _usage_dict(draft.record),
        },
        model=LoggedModel(source.model_id),
    )
    # As they are: made from JSON, an attachment that has no type would look for one on the web.
    response.prompt = llm.Prompt(  # type: ignore[no-untyped-call]
        "", response.model, messages=prompt
    )
    response.set_resolved_model(draft.record.summarizer)
    conversation_id = _new_thread(db, store, source)
    store.log(response, conversation_id)
    # from_dict() knows no duration and no date.
    record = draft.record
    db.table("turns").update(
        draft.turn_id, {"duration_ms": record.duration_ms, "datetime_utc": record.datetime_utc}
    )
    _copy_tools(db, source.id, draft.turn_id)
    tip = store.ensure_chain(
        tail, parent=store.thread_tip(conversation_id), fragments=source.fragments
    )
    db.table("threads").update(conversation_id, {"tip_message_hash": tip})
    db.table("compactions").insert(
        {
            "turn_id": draft.turn_id,
            "conversation_id": conversation_id,
            "source_conversation_id": source.id,
            "source_tip_hash": source.tip,
            **asdict(record),
            "lost": None if record.lost is None else json.dumps(record.lost, ensure_ascii=False),
        }
    )
    _insert_pins(db, [Said(source.id, text, None) for text in draft.pins])
    return Stored(conversation_id, newest_conversation(db) == conversation_id)


def _new_thread(db: sqlite_utils.Database, store: LogStore, source: Source) -> str:
    if source.live and source.live.in_place:
        return store.ensure_thread(source.id, source.name)
    thread = _row(db, "select id from threads where id = ?", source.id)
    return store.create_thread(name=source.name, forked_from=thread["id"] if thread else None)


def _copy_tools(db: sqlite_utils.Database, source_id: str, turn_id: str) -> None:
    # load_conversation() reads the tools from a thread's first turn, and this is that turn. Where
    # there are responses of an older llm, the first of them had the tools, and says nothing of a
    # toolbox's configuration: that stands on the results.
    if _row(db, "select id from responses where conversation_id = ?", source_id):
        db.execute(
            "insert into turn_tools (turn_id, tool_id, instance_id) "
            "select ?, tools.id, (select instance.id from tool_instances as instance "
            "join tool_results on instance_id = instance.id join responses "
            "on responses.id = response_id where conversation_id = first.conversation_id "
            "and substr(tools.name, 1, length(instance.name) + 1) = instance.name || '_' limit 1) "
            "from responses as first join tool_responses on response_id = first.id "
            "join tools on tools.id = tool_id where first.id = "
            "(select id from responses where conversation_id = ? order by id limit 1)",
            [turn_id, source_id],
        )
    else:
        db.execute(
            "insert into turn_tools (turn_id, tool_id, instance_id) "
            "select ?, tool_id, instance_id from turn_tools where turn_id = "
            "(select id from turns where thread_id = ? order by id limit 1)",
            [turn_id, source_id],
        )


def _thread_tip(db: sqlite_utils.Database, conversation_id: str) -> str | None:
    row = _row(db, "select tip_message_hash from threads where id = ?", conversation_id)
    return row["tip_message_hash"] if row else None


def _legacy_messages(db: sqlite_utils.Database, conversation_id: str) -> list[Message]:
    return legacy.messages_of(db, conversation_id, LoggedModel("logged"))


def _hash_of(messages: Sequence[Message]) -> str | None:
    """The hash under which the last of the messages will stand in the log."""
    return hashes_of(messages)[-1] if messages else None


def hashes_of(messages: Sequence[Message]) -> list[str]:
    """The hashes under which the messages stand in the log, or will."""
    hashes: list[str] = []
    for message in messages:
        hashes.append(message_hash(message, hashes[-1] if hashes else None))
    return hashes


class UntypedAttachment(llm.Attachment):
    """An attachment that the log has no type for. llm would ask its URL, each time it is hashed."""

    def resolve_type(self) -> str | None:
        return self.type


def _without_lookups(message: Message) -> Message:
    for part in message.parts:
        if isinstance(part, AttachmentPart) and part.attachment:
            part.attachment = _without_lookup(part.attachment)
        elif isinstance(part, ToolResultPart):
            part.attachments = [_without_lookup(attachment) for attachment in part.attachments]
    return message


def _without_lookup(attachment: llm.Attachment) -> llm.Attachment:
    if attachment.type:
        return attachment
    row = {**vars(attachment), "id": attachment.id()}  # type: ignore[no-untyped-call]
    untyped: llm.Attachment = UntypedAttachment.from_row(row)  # type: ignore[no-untyped-call]
    return untyped


def _originals(
    db: sqlite_utils.Database, store: LogStore, messages: Sequence[Message]
) -> list[Message]:
    """The messages as if none of them had ever been compacted, as far as the log reaches."""
    history = history_of(_unpruned(store, messages))
    if history.summary is None or not db.table("compactions").exists():
        return list(history.body)
    row = _row(
        db,
        "select source_tip_hash, messages_kept from compactions where turn_id = ?",
        history.summary.marker.compaction,
    )
    if row is None:
        return list(history.body)
    before = _originals(db, store, load_chain(store, row["source_tip_hash"]).messages)
    return [*before, *history.body[row["messages_kept"] :]]


def _unpruned(store: LogStore, messages: Sequence[Message]) -> list[Message]:
    """The messages with the original tool output, as far as the log has it."""
    known: dict[str, Message] = {}
    # The last one's chain has those before it.
    for hash in reversed(pruned_hashes(messages)):
        if hash not in known:
            with suppress(KeyError):
                chain = load_chain(store, hash)
                known.update(zip(chain.hashes, chain.messages, strict=True))
    return restored(messages, known.get)


def _reported(
    db: sqlite_utils.Database, thread_id: str, model_id: str, chain: Chain
) -> list[Reported]:
    """The usage of the turns that made a chain; a fork's first turns are its origin's.

    The compaction's own turn has the usage of the summarizer. The turns before it are not about
    this chain, and are not found: it has a root of its own.
    """
    summary = history_of(chain.messages).summary
    place = {hash: number for number, hash in enumerate(chain.hashes, 1)}
    turns = db.query(
        "with recursive lineage(id) as (select ? union "
        "select forked_from from threads join lineage using (id) where forked_from is not null) "
        "select id, parent_message_hash, tip_message_hash, input_tokens, output_tokens, "
        "token_details from turns where thread_id in (select id from lineage) "
        "and model = ? and id != ? and input_tokens > 0 order by id",
        [thread_id, model_id, summary.marker.compaction if summary else ""],
    )
    reported = [
        reported_usage(
            place[turn["parent_message_hash"]],
            place[turn["tip_message_hash"]],
            turn["input_tokens"],
            turn["output_tokens"],
            _details(turn["token_details"]),
        )
        for turn in turns
        if turn["parent_message_hash"] in place and turn["tip_message_hash"] in place
    ]
    return sorted(reported, key=lambda report: report.sent)


def _known(
    db: sqlite_utils.Database,
    model_id: str,
    messages: Sequence[Message],
    reported: Sequence[Reported],
) -> Calibration:
    # It takes two turns to tell what a message costs from what goes with each request.
    summary = history_of(messages).summary if len(reported) < 2 else None
    if summary is None or not db.table("compactions").exists():
        return UNKNOWN
    row = _row(
        db,
        "select source_conversation_id, source_tip_hash from compactions where turn_id = ? "
        "and exists (select 1 from turns where model = ? and input_tokens > 0)",
        summary.marker.compaction,
        model_id,
    )
    if row is None:
        return UNKNOWN
    chain = load_chain(LogStore(db), row["source_tip_hash"])  # type: ignore[no-untyped-call]
    before = _reported(db, row["source_conversation_id"], model_id, chain)
    known = _known(db, model_id, chain.messages, before)
    return replace(calibrate(message_sizes(chain.messages), before, known), newest=None)


def _details(text: str | None) -> dict[str, Any]:
    try:
        details = json.loads(text or "{}")
    except ValueError:
        return {}
    return details if isinstance(details, dict) else {}


def _compaction_of(db: sqlite_utils.Database, tip: str) -> dict[str, Any] | None:
    """The newest compaction of a state, if its conversation was not deleted since."""
    if not db.table("compactions").exists():
        return None
    return _row(
        db,
        "select conversation_id from compactions where source_tip_hash = ? "
        "and conversation_id in (select id from threads) order by turn_id desc limit 1",
        tip,
    )


def _all_fragments(
    db: sqlite_utils.Database, conversation_id: str, tip: str, messages: Sequence[Message]
) -> Iterator[str]:
    """The fragments in the chain of a conversation and in those that it was compacted from."""
    yield from _fragments_of(db, tip)
    yield from legacy.fragments_of(db, conversation_id)
    yield from _system_fragments(db, conversation_id)
    summary = history_of(messages).summary
    if summary is None or not db.table("compactions").exists():
        return
    for row in db.query(
        "with recursive lineage(tip, source) as ("
        "select source_tip_hash, source_conversation_id from compactions where turn_id = ? union "
        "select source_tip_hash, source_conversation_id from compactions "
        "join lineage on compactions.conversation_id = lineage.source) select tip from lineage",
        [summary.marker.compaction],
    ):
        yield from _fragments_of(db, row["tip"])


def _system_fragments(db: sqlite_utils.Database, conversation_id: str) -> Iterator[str]:
    """The system fragments of a conversation as its system prompt has them."""
    for row in db.query(
        "select content, source from turn_fragments join turns on turns.id = turn_id "
        "join fragments on fragments.id = fragment_id where thread_id = ? and kind = 'system'",
        [conversation_id],
    ):
        yield stripped_fragment(row["content"], row["source"])


def stripped_fragment(content: str, source: str | None) -> str:
    """A fragment as llm puts it into a system prompt: with space around it, it is not found there.

    llm stores such a prompt by its text, and each generation would do so again.
    """
    return llm.Fragment(content.strip(), source)  # type: ignore[no-untyped-call]


def _fragments_of(db: sqlite_utils.Database, tip: str) -> list[str]:
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


def _usage_dict(record: Record) -> UsageDict:
    usage: UsageDict = {}
    if record.input_tokens is not None:
        usage["input"] = record.input_tokens
    if record.output_tokens is not None:
        usage["output"] = record.output_tokens
    return usage


def _row(db: sqlite_utils.Database, sql: str, *parameters: str) -> dict[str, Any] | None:
    return next(iter(db.query(sql, list(parameters))), None)
