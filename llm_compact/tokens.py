"""Sizes as people write them, and what a text, a message or a conversation costs in tokens.

A plain count is ours: of o200k_base where a vocabulary is on the disk, else an estimate. A
calibrated one is what the conversation's own provider would count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from llm.parts import AttachmentPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

from .vocabulary import counter

Unit = Literal["tokens", "%", "messages", "exchanges"]

MESSAGE_TOKENS = 4
"What a message costs besides its content: role and separators in a chat template."
ATTACHMENT_TOKENS = 1_000
"An image or document that a model is shown. Providers count between 85 and some 2,500."

LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
"How far a provider's count may be from ours before we don't believe it."
LEAST_GROWTH = 50
"Below so many tokens between turns, what they say about a factor is noise."

LEAST_THRESHOLD = 100
"Tokens. Whoever says less means something else."

_KEEP = "2x (exchanges), 6m (messages), 8k (tokens) or 20% (of the context window)"

_CACHED = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    ("cache_read_input_tokens",),
    ("prompt_cache_hit_tokens",),
    ("cachedContentTokenCount",),
)
"Where providers tell what of the input was in their cache: OpenAI, Anthropic, DeepSeek, Gemini."

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
    """Read a size. A bare number is tokens. Raises `ValueError`."""
    match = re.fullmatch(r"\s*([0-9][0-9_,]*)(\.[0-9]+)?([kmx%]?)\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size")
    suffix = match[3].lower()
    number = float(re.sub("[_,]", "", match[1]) + (match[2] or ""))
    if suffix == "k":
        number *= 1_000
    if number < 1 or number != int(number):
        raise ValueError(f"{text!r} is not a size")
    return Size(int(number), _UNITS.get(suffix, "tokens"))


def parse_keep(text: str) -> Size:
    """Read the value of `--keep`, where a bare number below 100 is exchanges."""
    size = _read_size(text, f"{text!r} is not a size. Use {_KEEP}")
    few = size.unit == "tokens" and size.value < 100
    return Size(size.value, "exchanges") if few else size


def parse_length(text: str) -> Size:
    """Read the value of `--max-summary`: tokens, or a percentage of what is replaced."""
    told = f"{text!r} is no length of a summary. Use 1k (tokens) or 5% (of what it replaces)"
    size = _read_size(text, told)
    if size.unit not in ("tokens", "%") or (size.unit == "%" and size.value > 100):
        raise ValueError(told)
    return size


def parse_tokens(text: str) -> int:
    """Read a size that is always tokens, such as a context window."""
    told = f"{text!r} is no number of tokens. Use 32k or 32000"
    size = _read_size(text, told)
    if size.unit != "tokens":
        raise ValueError(told)
    return size.value


def parse_threshold(text: str) -> Size | None:
    """Read from which size on a conversation is compacted by itself; None for `off`."""
    if text.strip().lower() == "off":
        return None
    size = _read_size(
        text,
        f"{text!r} is no threshold. Use 70% (of the context window), 100k (tokens), "
        "20m (messages), 10x (exchanges) or off",
    )
    if size.unit == "%" and size.value > 100:
        raise ValueError(f"{text!r} is more than the context window. Use 70%, or 100k (tokens)")
    if size.unit == "tokens" and size.value < LEAST_THRESHOLD:
        number = size.value
        raise ValueError(
            f"{text!r} is only {number} tokens. Use {number}% (of the context window), {number}k "
            f"(tokens), {number}m (messages) or {number}x (exchanges)"
        )
    return size


def _read_size(text: str, told: str) -> Size:
    """Read a size of which not every unit fits. Raises `ValueError` with what is told of them."""
    try:
        return parse_size(text)
    except ValueError:
        raise ValueError(told) from None


def count_text(text: str) -> int:
    """The plain count of a text: everything that is counted is counted here."""
    return counter().count(text) if text else 0


@dataclass(frozen=True)
class Content:
    """What there is to count in a message."""

    texts: tuple[tuple[str, str], ...]
    "Each text behind its kind: who said it, or that it is of a tool's call or result."
    besides: int
    "The plain count of all that is no text."

    @property
    def tokens(self) -> int:
        """The plain count."""
        return self.besides + sum(count_text(text) for _, text in self.texts)


def message_tokens(message: Message) -> int:
    """The plain count of a message with everything in it."""
    return content_of(message).tokens


def content_of(message: Message) -> Content:
    """All that counts in a message. base64 is no text."""
    texts: list[tuple[str, str]] = []
    besides = MESSAGE_TOKENS
    for part in message.parts:
        if isinstance(part, (TextPart, ReasoningPart)):
            texts.append((message.role, part.text))
        elif isinstance(part, ToolCallPart):
            arguments = json.dumps(part.arguments, ensure_ascii=False)
            texts += [("call", part.name), ("call", arguments)]
            besides += MESSAGE_TOKENS
        elif isinstance(part, ToolResultPart):
            texts.append(("result", part.output))
            besides += MESSAGE_TOKENS + ATTACHMENT_TOKENS * len(part.attachments)
        elif isinstance(part, AttachmentPart):
            besides += ATTACHMENT_TOKENS
    return Content(tuple(texts), besides)


@dataclass(frozen=True)
class Reported:
    """What a provider counted in one turn of a conversation."""

    sent: int
    "How many messages it was sent, from the conversation's first one on."
    input: int
    "The tokens of these, with everything that goes with each request, such as tool schemas."
    answered: int
    "How many messages there were with its answer."
    output: int | None
    "The tokens of the answer, without reasoning that is not sent again."

    @property
    def messages(self) -> int:
        """How many messages `tokens` is about."""
        return self.sent if self.output is None else self.answered

    @property
    def tokens(self) -> int:
        return self.input + (self.output or 0)


def reported_usage(
    sent: int, answered: int, input: int, output: int | None, details: Mapping[str, Any]
) -> Reported:
    """What a provider counted, from the usage that llm has of it and the provider's details."""
    # Anthropic's input_tokens leave out what went through its cache. Proxies that use the same
    # names beside OpenAI's have it in both.
    cached = 0
    if "prompt_tokens_details" not in details:
        cached = _number(details, "cache_creation_input_tokens")
        cached += _number(details, "cache_read_input_tokens")
    if output is not None:
        reasoning = (
            _number(details, "output_tokens_details", "reasoning_tokens")
            or _number(details, "completion_tokens_details", "reasoning_tokens")
            or _number(details, "thoughtsTokenCount")
        )
        output = max(0, output - reasoning)
    return Reported(sent, input + cached, answered, output)


def cached_tokens(details: Mapping[str, Any]) -> int | None:
    """What a provider had in its cache of an input, None where it does not say."""
    found = (_told(details, *keys) for keys in _CACHED)
    return next((number for number in found if number is not None), None)


def _number(details: Mapping[str, Any], *keys: str) -> int:
    return _told(details, *keys) or 0


def _told(details: Mapping[str, Any], *keys: str) -> int | None:
    value: Any = details
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class Calibration:
    """From plain counts to what a conversation's provider counts."""

    factor: float = 1.0
    "Its tokens for one of ours."
    overhead: int = 0
    "Its tokens in each request that belong to no message."
    newest: Reported | None = None
    "The last thing that it counted."

    def tokens(self, plain: int) -> int:
        """The tokens of messages of this plain count."""
        return round(self.factor * plain)

    def plain(self, tokens: int) -> int:
        """The plain count of messages of so many tokens."""
        return int(tokens / self.factor)

    def conversation(self, sizes: Sequence[int]) -> int:
        """The tokens of the conversation that this was made from, in the plain `sizes`.

        What the provider has counted is not counted again, only what came after that.
        """
        if self.newest is None:
            return self.overhead + self.tokens(sum(sizes))
        return self.newest.tokens + self.tokens(sum(sizes[self.newest.messages :]))


UNKNOWN = Calibration()


def calibrate(
    sizes: Sequence[int], reported: Sequence[Reported], known: Calibration = UNKNOWN
) -> Calibration:
    """Learn how a provider counts from what it reported, oldest first.

    `known` is what was known of it before, and holds as long as nothing else is reported.
    `sizes` are the plain counts of the conversation's messages. The factor is the median, by
    weight, of what the input grew by from turn to turn against our count of the same messages:
    whatever goes with every request, such as tool schemas, cancels out, and one odd turn (an
    image, a cache) does not count. Where the newest report is far below our count it was not
    about the whole conversation (some servers report only what they had not cached, some adapters
    send only the last message), and nothing is learned.
    """
    before = [0]
    for size in sizes:
        before.append(before[-1] + size)
    credible: list[Reported] = []
    for report in reversed(reported):
        if report.tokens < LEAST_FACTOR * before[report.messages]:
            break
        credible.insert(0, report)
    if not credible:
        return replace(known, newest=None)
    newest = credible[-1]
    growth = [
        (max(0, new.input - old.input) / plain, plain)
        for old, new in pairwise(credible)
        if (plain := before[new.sent] - before[old.sent]) > 0
    ]
    factor = _median(growth) if sum(plain for _, plain in growth) >= LEAST_GROWTH else known.factor
    # No request has less than nothing besides its messages.
    most = newest.tokens / max(1, before[newest.messages])
    factor = max(LEAST_FACTOR, min(factor, most, MOST_FACTOR))
    points = [(report.sent, report.input) for report in credible]
    points.append((newest.messages, newest.tokens))
    overhead = min(tokens - factor * before[messages] for messages, tokens in points)
    return Calibration(factor, max(0, round(overhead)), newest)


def _median(weighted: Iterable[tuple[float, int]]) -> float:
    """The value with half of the weight below it."""
    ordered = sorted(weighted)
    half, sum_so_far = sum(weight for _, weight in ordered) / 2, 0
    for value, weight in ordered:
        sum_so_far += weight
        if sum_so_far >= half:
            return value
    raise ValueError("no values")
