"""Writing a compaction: the new conversation and its record, in one transaction.

llm's `LogStore` writes here, and in chain.py it reads, and it is used nowhere else. Its docs call
the tables public and the class internal, so tests/test_contract.py holds what we rely on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import llm
import sqlite_utils
from llm.logs import LogStore
from llm.parts import Message
from llm.serialization import UsageDict

from .conversation import Marker, compacted_chain, history_of
from .errors import AlreadyCompacted, ConversationError
from .log import (
    LoggedModel,
    compacted_as,
    migrated,
    newest_conversation,
    newest_message,
    row_of,
    writing,
)
from .pinned import Said, insert_pins
from .schema import Record
from .source import Source, compacted_by_others


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


def store_compaction(
    db: sqlite_utils.Database, source: Source, draft: Draft, *, again: bool = False
) -> Stored:
    """Write the compacted conversation: all of it or nothing, in one transaction.

    Raises `AlreadyCompacted` unless `again`, and `ConversationError` when something was said in
    the source since it was read. A conversation that is going on is what this process says it is,
    and only what others made of it is of interest.
    """
    # To migrate an older log is a write, too: not before it is clear that there will be one.
    with migrated(db) as readable:
        _check_unchanged(readable, source, again)
    store = LogStore(db)  # type: ignore[no-untyped-call]
    with writing(db):
        _check_unchanged(db, source, again)
        return _write(db, store, source, draft)


def _check_unchanged(db: sqlite_utils.Database, source: Source, again: bool) -> None:
    if source.live:
        made = None if again else compacted_by_others(db, source)
        if made:
            raise AlreadyCompacted(made)
        return
    if newest_message(db, source.id) != source.tip:
        raise ConversationError(
            f"Conversation {source.id} went on while it was summarized. Nothing was written; "
            "run the command once more"
        )
    done = compacted_as(db, source.tip)
    if done and not again:
        raise AlreadyCompacted(done)


def _write(db: sqlite_utils.Database, store: LogStore, source: Source, draft: Draft) -> Stored:
    chain = draft.chain(source)
    first = len(chain) - len(draft.tail)
    prompt, answer = chain[: first - 1], chain[first - 1]
    tail = chain[first : len(chain) - source.pending]
    if row_of(db, "select hash from messages where hash = ?", source.tip) is None:
        # Lineage follows hashes, so the source's must lead somewhere.
        said = source.messages[: len(source.messages) - source.pending]
        store.ensure_chain(said, fragments=source.fragments)
    # Before log() stores it: log() would copy the text of fragments that it is not told of.
    store.ensure_chain(prompt, fragments=source.fragments)
    conversation_id = _new_thread(db, store, source)
    store.log(_response(source, draft, prompt, answer), conversation_id)
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
    _insert_record(db, source, draft, conversation_id)
    insert_pins(db, [Said(source.id, text, None) for text in draft.pins])
    return Stored(conversation_id, newest_conversation(db) == conversation_id)


def _response(
    source: Source, draft: Draft, prompt: Sequence[Message], answer: Message
) -> llm.Response:
    """The compaction's turn, as if the conversation's model had answered with the summary."""
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
    return response


def _insert_record(
    db: sqlite_utils.Database, source: Source, draft: Draft, conversation_id: str
) -> None:
    lost = draft.record.lost
    db.table("compactions").insert(
        {
            "turn_id": draft.turn_id,
            "conversation_id": conversation_id,
            "source_conversation_id": source.id,
            "source_tip_hash": source.tip,
            **asdict(draft.record),
            "lost": None if lost is None else json.dumps(lost, ensure_ascii=False),
        }
    )


def _new_thread(db: sqlite_utils.Database, store: LogStore, source: Source) -> str:
    if source.live and source.live.in_place:
        return store.ensure_thread(source.id, source.name)
    thread = row_of(db, "select id from threads where id = ?", source.id)
    return store.create_thread(name=source.name, forked_from=thread["id"] if thread else None)


def _copy_tools(db: sqlite_utils.Database, source_id: str, turn_id: str) -> None:
    # load_conversation() reads the tools from a thread's first turn, and this is that turn. Where
    # there are responses of an older llm, the first of them had the tools, and says nothing of a
    # toolbox's configuration: that stands on the results.
    if row_of(db, "select id from responses where conversation_id = ?", source_id):
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


def _usage_dict(record: Record) -> UsageDict:
    usage: UsageDict = {}
    if record.input_tokens is not None:
        usage["input"] = record.input_tokens
    if record.output_tokens is not None:
        usage["output"] = record.output_tokens
    return usage
