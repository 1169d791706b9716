"""Sizes as people write them, and what a text, a message or a conversation costs in tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from llm.parts import AttachmentPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

from .estimate import estimate

Unit = Literal["tokens", "%", "messages", "exchanges"]

MESSAGE_TOKENS = 4
"What a message costs besides its content: role and separators in a chat template."
ATTACHMENT_TOKENS = 1_000
"An image or document that a model is shown. Providers count between 85 and some 2,500."

_UNITS: dict[str, Unit] = {"m": "messages", "x": "exchanges", "%": "%"}
_SUFFIXES = {unit: suffix for suffix, unit in _UNITS.items()}


@dataclass(frozen=True)
class Size:
    """How much of a conversation: `8k` or `8000` tokens, `70%`, `6m` messages, `2x` exchanges."""

    value: int
    unit: Unit

    def __str__(self) -> str:
        if self.unit == "tokens" and self.value % 1_000 == 0:
            return f"{self.value // 1_000}k"
        return f"{self.value}{_SUFFIXES.get(self.unit, '')}"


def parse_size(text: str) -> Size:
    """Read a size. A bare number is tokens. Raises `ValueError` with a line that says what fits."""
    match = re.fullmatch(r"\s*([0-9][0-9_,]*)(\.[0-9]+)?([kmx%]?)\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(
            f"{text!r} is not a size. Use 2x (exchanges), 6m (messages) or 8k (tokens)"
        )
    suffix = match[3].lower()
    number = float(re.sub("[_,]", "", match[1]) + (match[2] or ""))
    if suffix == "k":
        number *= 1_000
    if number < 1 or number != int(number):
        raise ValueError(f"{text!r} is not a size: it has to be a whole number of at least 1")
    return Size(int(number), _UNITS.get(suffix, "tokens"))


def parse_keep(text: str) -> Size:
    """Read the value of `--keep`, where a bare number below 100 is exchanges."""
    size = parse_size(text)
    few = size.unit == "tokens" and size.value < 100
    return Size(size.value, "exchanges") if few else size


def parse_length(text: str) -> Size:
    """Read the value of `--max-summary`: tokens, or a percentage of what is replaced."""
    size = parse_size(text)
    if size.unit not in ("tokens", "%") or (size.unit == "%" and size.value > 100):
        raise ValueError(f"{text!r} is no length of a summary. Use 1k (tokens) or 5%")
    return size


def parse_tokens(text: str) -> int:
    """Read a size that is always tokens, such as a context window."""
    size = parse_size(text)
    if size.unit != "tokens":
        raise ValueError(f"{text!r} is no number of tokens. Use 32k or 32000")
    return size.value


def message_tokens(message: Message) -> int:
    """The estimated tokens of a message with everything in it. base64 is not counted as text."""
    total = MESSAGE_TOKENS
    for part in message.parts:
        if isinstance(part, (TextPart, ReasoningPart)):
            total += estimate(part.text)
        elif isinstance(part, ToolCallPart):
            arguments = json.dumps(part.arguments, ensure_ascii=False)
            total += MESSAGE_TOKENS + estimate(part.name) + estimate(arguments)
        elif isinstance(part, ToolResultPart):
            total += MESSAGE_TOKENS + estimate(part.output)
            total += ATTACHMENT_TOKENS * len(part.attachments)
        elif isinstance(part, AttachmentPart):
            total += ATTACHMENT_TOKENS
    return total


def count_tokens(messages: Iterable[Message]) -> int:
    """The estimated tokens of some messages."""
    return sum(message_tokens(message) for message in messages)
