"""Pins: what the user wants to keep word for word, behind every summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sqlite_utils

from .check import storable
from .errors import ConversationError
from .language import all_words, words
from .log import has_conversation, newest_conversation
from .pinned import Said, read_pins, read_said, store_pins
from .summary import Head
from .tokens import count_text

_FENCE = re.compile("`{3,}")
_ID = re.compile("[0-7][0-9a-hjkmnp-tv-z]{25}", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")


def pins_from(
    db: sqlite_utils.Database,
    texts: Sequence[str],
    conversation_id: str | None,
    *,
    is_continued: bool = False,
    answers: bool = False,
) -> list[Said]:
    """What is to be pinned: texts, and what was said in the responses with these ids.

    A text is pinned to the conversation, a response to its own unless one is named. `answers`
    says that it is the response that is meant, and not its prompt. Raises `ConversationError`.
    """
    chosen = None
    if conversation_id is not None or is_continued:
        chosen = conversation_of(db, conversation_id)
    found = []
    for text in map(storable, texts):
        said = read_said(db, text, answer=answers)
        if said is None and _ID.fullmatch(text):
            raise ConversationError(f"No response found with id={text}")
        if said is None and len(texts) > 1 and not re.search(r"\s", text):
            raise ConversationError(f"{text!r} is no response id. Put each text in quotes")
        if said is None and answers:
            raise ConversationError(f"{text!r} is no response id, and --response needs one")
        said = said or Said(chosen or conversation_of(db, None), text, None)
        (cleaned,) = clean_pins([said.text]) or ("",)
        if not cleaned:
            raise ConversationError(f"Nothing to pin: {text!r} has no text of its own")
        found.append(replace(said, conversation_id=chosen or said.conversation_id, text=cleaned))
    return found


@dataclass(frozen=True)
class Pinned:
    """A pin that holds in a conversation."""

    id: str
    conversation_id: str
    is_new: bool


def pin_once(db: sqlite_utils.Database, pins: Sequence[Said]) -> list[Pinned]:
    """Pin what does not hold in its conversation yet, all or none. Returns all of them."""
    new: dict[tuple[str, str], Said] = {}
    known: dict[tuple[str, str], Pinned] = {}
    for pin in pins:
        key = pin.conversation_id, pin.text
        rows = read_pins(db, pin.conversation_id)
        row = next((row for row in rows if row["text"] == pin.text), None)
        if row:
            known[key] = Pinned(row["id"], row["conversation_id"], is_new=False)
        else:
            new.setdefault(key, pin)
    ids = store_pins(db, list(new.values())) if new else []
    for (key, pin), id in zip(new.items(), ids, strict=True):
        known[key] = Pinned(id, pin.conversation_id, is_new=True)
    return [known[key] for key in dict.fromkeys((p.conversation_id, p.text) for p in pins)]


def conversation_of(db: sqlite_utils.Database, conversation_id: str | None) -> str:
    """The conversation with this id, else the one that `llm -c` would continue.

    Raises `ConversationError` where there is none.
    """
    if conversation_id is not None and not has_conversation(db, conversation_id):
        raise ConversationError(f"No conversation found with id={conversation_id}")
    found = conversation_id or newest_conversation(db)
    if found is None:
        raise ConversationError("No conversations found in the log")
    return found


def with_pins(summary: str, head: Head) -> str:
    """The summary with the pins behind it, in a section of their own."""
    if not head.pins:
        return summary
    return f"{summary.rstrip()}\n\n{_section(head.pins, head.language)}"


def clean_pins(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts without blank ends, each of them once."""
    # The first line may be indented: it may be code.
    cleaned = (_BLANK_LINES.sub("", storable(text)).rstrip() for text in texts)
    return tuple(dict.fromkeys(filter(None, cleaned)))


def pinned_tokens(pins: Sequence[str], language: str) -> int:
    """What the section of the pins adds to a summary."""
    return count_text(f"\n\n{_section(pins, language)}") + 2 if pins else 0


def without_pins(summary: str) -> str:
    """The summary without that section. What is still pinned comes again, and the rest is gone."""
    headings = {f"## {said['pins']}" for said in all_words().values()}
    lines = summary.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if line.rstrip() in headings and _are_pins(lines[place + 1 :]):
            return "".join(lines[:place]).rstrip()
    return summary


def _are_pins(lines: Sequence[str]) -> bool:
    """Whether this is what stands below the heading, and nothing else."""
    stripped = [line.rstrip() for line in lines]
    at = 0
    while at < len(stripped):
        line = stripped[at]
        if _FENCE.fullmatch(line) and line in stripped[at + 1 :]:
            at = stripped.index(line, at + 1)
        elif not line.startswith("- "):
            return False
        at += 1
    return bool(stripped)


def _section(pins: Sequence[str], language: str) -> str:
    return "\n".join([f"## {words(language)['pins']}", *map(_item, pins)])


def _item(pin: str) -> str:
    """A line is an item of the list, more of them are fenced: what is a heading in there is none.

    Indenting would keep the sections apart, too, but then a search for the text finds nothing.
    """
    if len(pin.splitlines()) == 1:
        return f"- {pin}"
    fence = max(["```", *(f"{found}`" for found in _FENCE.findall(pin))], key=len)
    return f"{fence}\n{pin}\n{fence}"
