"""Messages as text for a summarizer: numbered, complete, and fenced so that they stay data."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence

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

TOOL_OUTPUT_CHARACTERS = 4_000
"How much of one tool output is shown. People and models say things; tools print them."


def transcript(messages: Sequence[Message], boundary: str) -> str:
    """The messages with their number, role, text, tool calls, results and attachments.

    Each structural line begins with `boundary`, which no text can know (see `new_boundary`), so
    nothing inside a message can end the transcript or pose as another message. Reasoning is left
    out: it is not part of what was said. A long tool output keeps its first and last part around
    a mark that tells how much is missing.
    """
    lines = [f"{boundary} begin"]
    for number, message in enumerate(messages, 1):
        lines.append(f"{boundary} [{number}] {message.role}")
        lines.extend(_part_lines(message.parts))
    lines.append(f"{boundary} end")
    return "\n".join(lines)


def new_boundary(messages: Sequence[Message], *texts: str) -> str:
    """A word that can't be guessed, and that occurs in none of the messages and texts."""
    lines = [line for message in messages for line in _part_lines(message.parts)]
    content = "\n".join([*lines, *texts])
    while True:
        boundary = f"==={secrets.token_hex(6)}==="
        if boundary not in content:
            return boundary


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
            yield from (_attachment(a) for a in part.attachments)
        elif isinstance(part, AttachmentPart) and part.attachment:
            yield _attachment(part.attachment)
        elif not isinstance(part, ReasoningPart):
            yield f"({type(part).__name__})"


def _attachment(attachment: Attachment) -> str:
    where = attachment.path or attachment.url or f"{len(attachment.content or b''):,} bytes"
    return f"(attachment {attachment.type or 'of unknown type'}: {where})"
