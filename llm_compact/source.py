"""A conversation as the log has it, or as it is going on: what a compaction starts from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import llm
import sqlite_utils
from llm.parts import AttachmentPart, Message, ToolResultPart

from . import legacy
from .chain import Chain, chain_at, fragments_of, hash_of
from .conversation import history_of, is_request
from .errors import ConversationError
from .log import (
    compacted_as,
    legacy_messages,
    messages_kept,
    migrated,
    newest_conversation,
    newest_generation,
    newest_message,
    row_of,
    thread_tip,
)
from .pinned import pinned_texts
from .placeholder import pruned_hashes, restored
from .sizes import message_sizes
from .tokens import UNKNOWN, Calibration, Reported, calibrate, reported_usage


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
    is_untouched: bool = False
    "Whether it was compacted, and nothing was said since."
    live: Live | None = None
    "Present if it is not read from the log but going on."

    @property
    def pending(self) -> int:
        """How many of its last messages are a prompt without an answer, which llm logs itself."""
        return self.live.pending if self.live else 0


def read_source(db: sqlite_utils.Database, conversation_id: str | None) -> Source:
    """Read a conversation, or without an id the one that `llm -c` would continue.

    Raises `ConversationError` if there is none, or if it has no messages.
    """
    with migrated(db) as readable:
        return _read(readable, conversation_id)


def _read(db: sqlite_utils.Database, conversation_id: str | None) -> Source:
    if conversation_id is None:
        conversation_id = newest_conversation(db)
    if conversation_id is None:
        raise ConversationError("No conversations found in the log")
    # In this order, as llm.cli.load_conversation() does: a conversation of an older llm that went
    # on since has rows in both tables.
    row = row_of(
        db,
        "select name, coalesce(model, (select model from responses where conversation_id = "
        "conversations.id order by id desc limit 1)) as model from conversations where id = ?",
        conversation_id,
    ) or row_of(
        db,
        "select name, (select model from turns where thread_id = threads.id "
        "order by id desc limit 1) as model from threads where id = ?",
        conversation_id,
    )
    if row is None:
        raise ConversationError(f"No conversation found with id={conversation_id}")
    tip = thread_tip(db, conversation_id)
    chain = chain_at(db, tip) if tip else Chain(legacy_messages(db, conversation_id), [])
    messages = chain.messages
    if row["model"] is None or not messages:
        raise ConversationError(f"Conversation {conversation_id} is empty")
    messages = [_without_lookups(message) for message in messages]
    tip = tip or hash_of(messages)
    assert tip is not None
    reported = _reported(db, conversation_id, row["model"], chain)
    return Source(
        id=conversation_id,
        name=row["name"],
        model_id=row["model"],
        tip=tip,
        messages=tuple(messages),
        originals=tuple(_originals(db, messages)),
        fragments=tuple(_all_fragments(db, conversation_id, tip, messages)),
        compacted_as=compacted_as(db, tip),
        reported=tuple(reported),
        known=_known(db, row["model"], messages, reported),
        pins=pinned_texts(db, conversation_id),
        is_untouched=messages_kept(db, conversation_id) == len(history_of(messages).body),
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
    tip = hash_of(messages[: len(messages) - pending]) or ""
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
    with migrated(db) as readable:
        logged = thread_tip(readable, conversation_id)
        row = row_of(
            readable,
            "select name from threads where id = ? union all "
            "select name from conversations where id = ?",
            conversation_id,
            conversation_id,
        )
        if originals is None:
            known = replace(known, originals=tuple(_originals(readable, said)))
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
    with migrated(db) as readable:
        tip = thread_tip(readable, conversation_id)
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
    with migrated(db) as readable:
        return _known(readable, model_id, messages, reported)


def read_made_by_others(db: sqlite_utils.Database, source: Source) -> Source | None:
    """What others made of a live conversation meanwhile, with what was said in that since."""
    made = compacted_by_others(db, source)
    return read_source(db, newest_generation(db, made)) if made else None


def compacted_by_others(db: sqlite_utils.Database, source: Source) -> str | None:
    """The conversation that another process has made of a live one in this very state."""
    if not source.live or source.live.in_place or source.tip != newest_message(db, source.id):
        return None
    made = compacted_as(db, source.tip)
    return made if made != source.id else None


def _originals(db: sqlite_utils.Database, messages: Sequence[Message]) -> list[Message]:
    """The messages as if none of them had ever been compacted, as far as the log reaches."""
    history = history_of(_unpruned(db, messages))
    if history.summary is None or not db.table("compactions").exists():
        return list(history.body)
    row = row_of(
        db,
        "select source_tip_hash, messages_kept from compactions where turn_id = ?",
        history.summary.marker.compaction,
    )
    if row is None:
        return list(history.body)
    before = _originals(db, chain_at(db, row["source_tip_hash"]).messages)
    return [*before, *history.body[row["messages_kept"] :]]


def _unpruned(db: sqlite_utils.Database, messages: Sequence[Message]) -> list[Message]:
    """The messages with the original tool output, as far as the log has it."""
    known: dict[str, Message] = {}
    # The last one's chain has those before it.
    for hash in reversed(pruned_hashes(messages)):
        if hash not in known:
            with suppress(KeyError):
                chain = chain_at(db, hash)
                known.update(zip(chain.hashes, chain.messages, strict=True))
    return restored(messages, known.get)


def _all_fragments(
    db: sqlite_utils.Database, conversation_id: str, tip: str, messages: Sequence[Message]
) -> Iterator[str]:
    """The fragments in the chain of a conversation and in those that it was compacted from."""
    yield from fragments_of(db, tip)
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
        yield from fragments_of(db, row["tip"])


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
    row = row_of(
        db,
        "select source_conversation_id, source_tip_hash from compactions where turn_id = ? "
        "and exists (select 1 from turns where model = ? and input_tokens > 0)",
        summary.marker.compaction,
        model_id,
    )
    if row is None:
        return UNKNOWN
    chain = chain_at(db, row["source_tip_hash"])
    before = _reported(db, row["source_conversation_id"], model_id, chain)
    known = _known(db, model_id, chain.messages, before)
    return replace(calibrate(message_sizes(chain.messages), before, known), newest=None)


def _details(text: str | None) -> dict[str, Any]:
    try:
        details = json.loads(text or "{}")
    except ValueError:
        return {}
    return details if isinstance(details, dict) else {}


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


class UntypedAttachment(llm.Attachment):
    """An attachment that the log has no type for. llm would ask its URL, each time it is hashed."""

    def resolve_type(self) -> str | None:
        return self.type
