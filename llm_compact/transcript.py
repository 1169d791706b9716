"""Messages as text for a summarizer: numbered, complete, fenced, and in chunks that fit."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from llm import Attachment
from llm.parts import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

from .conversation import is_request
from .tokens import count_text

TOOL_OUTPUT_CHARACTERS = 4_000
"How much of one tool output is shown. People and models say things; tools print them."

FRAGMENT_CHARACTERS = 500
"A fragment that is longer is told by its beginning, of 80 characters."

SHORTEST_FRAGMENT = 12
"A shorter one is a word, which stands in what is said as well."

FRAGMENT_NOTE = "characters of a fragment"
"What stands there instead of it, behind their number."


@dataclass(frozen=True)
class Piece:
    """A part of a transcript that is shown as a whole."""

    label: str
    "Who speaks, for the line above the text."
    text: str
    rank: int = 1
    "What begins here: 3 an exchange, 2 a round, 1 a message, 0 the rest of a message."

    @cached_property
    def tokens(self) -> int:
        """With the line that the label takes."""
        return count_text(self.text) + count_text(self.label) + 10


def pieces_of(messages: Sequence[Message], *, before: int = 0) -> list[Piece]:
    """The messages with their number, role, text, tool calls, results and attachments.

    `before` is how many messages came before these, so that a number means the same message in
    each generation.

    Reasoning is left out: it is not part of what was said. A long tool output keeps its first
    and last part around a mark that tells how much is missing.
    """
    pieces = []
    for index, message in enumerate(messages):
        rank = 1
        if is_request(messages, index):
            rank = 3
        elif message.role == "assistant":
            rank = 2
        label = f"[{before + index + 1}] {message.role}"
        pieces.append(Piece(label, "\n".join(_part_lines(message.parts)), rank))
    return pieces


def by_reference(messages: Sequence[Message], fragments: Sequence[str]) -> tuple[Message, ...]:
    """The messages with a placeholder for each fragment that the user put into a prompt.

    llm joins fragments and prompt to one text, and what a document says must not pass for what
    the user said.
    """
    documents = sorted((f for f in fragments if len(f) >= SHORTEST_FRAGMENT), key=len, reverse=True)
    if not documents:
        return tuple(messages)
    return tuple(
        replace(message, parts=[_without(documents, part) for part in message.parts])
        if message.role == "user"
        else message
        for message in messages
    )


def _without(fragments: Sequence[str], part: Part) -> Part:
    if not isinstance(part, TextPart):
        return part
    text = part.text
    for fragment in fragments:
        if fragment not in text:
            continue
        is_long = len(fragment) > FRAGMENT_CHARACTERS
        beginning = " ".join((fragment[:80] if is_long else fragment).split())
        # What ends the note inside of it would make the rest the user's words.
        note = f"({len(fragment):,} {FRAGMENT_NOTE}: {beginning.replace('…)', '…')}…)"
        if is_long:
            text = text.replace(fragment, note)
        else:
            # llm puts each on lines of its own. Inside of a line it is what was said.
            text = note.join(re.split(rf"^{re.escape(fragment)}$", text, flags=re.MULTILINE))
    return replace(part, text=text)


def transcript(pieces: Sequence[Piece], boundary: str) -> str:
    """The pieces as one text that can't be mistaken for anything else.

    Each structural line begins with `boundary`, which no text can know (see `new_boundary`), so
    nothing inside a message can end the transcript or pose as another message.
    """
    lines = [f"{boundary} begin"]
    for piece in pieces:
        lines += [f"{boundary} {piece.label}", piece.text]
    lines.append(f"{boundary} end")
    return "\n".join(lines)


def new_boundary(*texts: str, size: int = 6) -> str:
    """A word that occurs in none of the texts, and was made up after them.

    A short one is as safe as a long one, as long as it occurs nowhere. `size` is random bytes.
    """
    while True:
        boundary = f"==={secrets.token_hex(size)}==="
        if not any(boundary in text for text in texts):
            return boundary


def chunks_of(pieces: Sequence[Piece], capacity: int) -> list[list[Piece]]:
    """The pieces in order, in chunks of at most `capacity` tokens.

    A chunk ends before an exchange if it can, else before a round, else before a message; only a
    message that is larger than a chunk is parted. Nothing is left out.
    """
    small = [part for piece in pieces for part in _parts_within(piece, capacity)]
    chunks, start = [], 0
    while start < len(small):
        end, filled = start, 0
        best = (-1, start + 1)
        while end < len(small) and (end == start or filled + small[end].tokens <= capacity):
            filled += small[end].tokens
            end += 1
            if filled >= capacity // 2 and end < len(small):
                best = max(best, (small[end].rank, end))
        cut = end if end == len(small) or best[0] < 0 else best[1]
        chunks.append(small[start:cut])
        start = cut
    return chunks


def _parts_within(piece: Piece, capacity: int) -> Iterator[Piece]:
    if piece.tokens <= capacity or len(piece.text) < 2:
        yield piece
        return
    half = len(piece.text) // 2
    # Between lines or words, if one ends nearby.
    for mark in ("\n", " "):
        found = piece.text.find(mark, half, half + half // 4 + 1)
        if found > 0:
            half = found + 1
            break
    label = piece.label.removesuffix(" (continued)")
    first, second = piece.text[:half], piece.text[half:]
    yield from _parts_within(replace(piece, text=first), capacity)
    rest = Piece(f"{label} (continued)", second, rank=0)
    yield from _parts_within(rest, capacity)


def shorten_middle(text: str, limit: int) -> str:
    """At most about `limit` characters: the beginning and the end, around a visible mark."""
    if len(text) <= limit:
        return text
    first, last = limit * 3 // 5, limit * 2 // 5
    mark = f"[... {len(text) - first - last:,} characters left out ...]"
    return f"{text[:first]}\n{mark}\n{text[-last:]}"


def _part_lines(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, TextPart):
            yield part.text
        elif isinstance(part, ToolCallPart):
            arguments = json.dumps(part.arguments, ensure_ascii=False)
            yield f"(calls tool {part.name}: {arguments})"
        elif isinstance(part, ToolResultPart):
            failed = f", failed: {part.exception}" if part.exception else ""
            yield f"(result of tool {part.name}{failed})"
            yield shorten_middle(part.output, TOOL_OUTPUT_CHARACTERS)
            yield from (attachment_line(a) for a in part.attachments)
        elif isinstance(part, AttachmentPart) and part.attachment:
            yield attachment_line(part.attachment)
        elif not isinstance(part, ReasoningPart):
            yield f"({type(part).__name__})"


def attachment_line(attachment: Attachment) -> str:
    """What an attachment is, and where, for somebody who can't be shown it."""
    where = attachment.path or attachment.url or f"{len(attachment.content or b''):,} bytes"
    return f"(attachment {attachment.type or 'of unknown type'}: {where})"
