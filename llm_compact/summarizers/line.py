"""A line that may become part of a summary, and what keeps it short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from llm.parts import Message

from ..estimate import estimate
from ..tokens import count_text

# Colours and other orders to a terminal, which tools print.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_CLAUSE = re.compile("[，、；：。！？,;]")
# The beginning of a number or a name, or of a syllable of several characters.
_UNFINISHED = re.compile(r"(?:[A-Za-z0-9_.,:/-]+|[\u1100-\u11ff]+)$")
MARK = re.compile(r"^(?:[-*+•>#|]+\s+)+")

SECTIONS = ("requests", "earlier", "statements", "calls", "errors")
"In the order of the summary; each is the key of a heading."


@dataclass(frozen=True)
class Line:
    """A line that may become part of the summary."""

    section: str
    text: str
    score: float
    "How much it matters among the lines of its section."
    place: float
    "Where it stands in the conversation."
    paragraph: tuple[int, int] | None = None
    "The message and the line of it that a sentence is from: what stood together stays together."
    who: str = ""
    "Who said it and when, which the text begins with."
    is_far: bool = False
    "Whether the previous summary stood for it already."

    @cached_property
    def tokens(self) -> int:
        return count_text(self.text)


def recency(index: int, messages: Sequence[Message]) -> float:
    return (index + 1) / len(messages)


def shorten(text: str, tokens: int) -> str:
    """One line of about so many tokens: the beginning, and the end of a much longer text."""
    # All of the conversation comes through here: an estimate, whatever the rest is counted with.
    text = " ".join(_CONTROL.sub("", text).split())
    size = estimate(text)
    if size <= tokens:
        return text
    characters = max(8, len(text) * tokens // size - 2)
    if size < 4 * tokens:
        return _closed(_whole_words(text[:characters])) + "…"
    end = characters // 4
    start = _closed(_whole_words(text[: characters - end]))
    return f"{start} … {text[-end:].partition(' ')[2] or text[-end:]}"


def _whole_words(text: str) -> str:
    start, space, _ = text.rpartition(" ")
    if space and len(start) > len(text) * 2 // 3:
        return start
    if text.isascii():
        return text
    # Scripts without spaces are cut behind a clause, and never in a number or a name.
    clauses = list(_CLAUSE.finditer(text, len(text) * 3 // 5))
    return text[: clauses[-1].start()] if clauses else _UNFINISHED.sub("", text) or text


def _closed(text: str) -> str:
    """A beginning of a text whose last code or emphasis does not run into what follows."""
    return text + "`" if text.count("`") % 2 else text
