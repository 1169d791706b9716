"""A summary: what is asked for one, what comes back, and its first line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Protocol

from llm.parts import Message

from .facts import Fact, rank_facts
from .language import languages, words
from .redaction import secrets_in, texts_of

_FENCE = re.compile(r"^\s*(?:[-*+]\s+)?(`{3,}|~{3,})")


@dataclass(frozen=True)
class Sent:
    """The beginning of a conversation as its own model was sent it last, up to the cut."""

    messages: tuple[Message, ...]
    tokens: int
    "As the conversation's provider counts them."


@dataclass(frozen=True)
class Head:
    """What a summary has to stand for."""

    messages: Sequence[Message]
    "What came since the previous summary, oldest first, up to the cut."
    previous: str | None
    "The previous summary, if there was one. The new one replaces it."
    originals: Sequence[Message]
    "The original messages of all generations up to the cut, as far as the log has them."
    tokens: int
    "Estimated size of `previous` and `messages` together."
    language: str
    "Code of the conversation's language."
    room: int
    "How long the summary should be at most, in tokens."
    most: int | None = None
    "The tokens above which a summary is refused, if it is a matter of so many."
    focus: str | None = None
    "What the user wants the summary to look after."
    generation: int = 1
    "1 for the first summary of a conversation, then 2, 3, ..."
    pins: tuple[str, ...] = ()
    "What stands behind the summary word for word, and is no part of `room` and `most`."
    sent: Sent | None = None
    "The same as the conversation's model knows it. None where it knows something else."

    @cached_property
    def facts(self) -> list[Fact]:
        """The exact values of the originals, the most used and latest in front."""
        return rank_facts(self.originals)

    @cached_property
    def secrets(self) -> frozenset[str]:
        """What is told somewhere to be a secret, and could not be told for one elsewhere."""
        said = (text for message in self.originals for text in texts_of(message))
        return secrets_in([*said, self.focus or "", *self.pins])


@dataclass(frozen=True)
class Usage:
    """What a summarizer used. All but `calls` are tokens, None where it does not say."""

    input: int | None = None
    output: int | None = None
    calls: int = 1
    cached: int | None = None
    "What of the input its provider had in its cache."


@dataclass(frozen=True)
class Answer:
    """A summarizer's answer as it came, before anything is made of it."""

    text: str
    usage: Usage = field(default_factory=Usage)
    tool_calls: int = 0
    has_reasoning: bool = False
    stop_reason: str | None = None
    "Why the model stopped, in the provider's word, if it gave one."
    prompt_version: str | None = None
    "What it was told, if that was something else than the summarizer's `prompt_version` says."


class Watch:
    """Is told how a summary comes about. This one does not care."""

    def text(self, text: str) -> None:
        """A further piece of what is certain to be the summary."""

    def progress(self, done: int, calls: int) -> None:
        """So many of about so many calls are done."""

    def note(self, text: str) -> None:
        """It is done in another way than was asked for, and why."""


class Summarizer(Protocol):
    """Anything that turns the head of a conversation into a shorter text."""

    @property
    def name(self) -> str:
        """A model's id, or `extractive`."""
        ...

    @property
    def prompt_version(self) -> str:
        """Changes with what the summarizer is told, so that summaries can be compared."""
        ...

    def summarize(self, head: Head, watch: Watch) -> Answer:
        """Summarize, telling `watch` how it goes. Raises `SummarizerError`."""
        ...


def record_line(head: Head) -> str:
    """The first line of a summary: that it is a record, of how much, and which generation."""
    said = words(head.language)["record"]
    return said.replace("{messages}", f"{len(head.originals):,}").replace(
        "{n}", str(head.generation)
    )


def is_record_line(line: str) -> bool:
    """Whether a line is the first one of some summary, in any language."""
    return _without_numbers(line) in _record_lines()


def with_record_line(summary: str, head: Head) -> str:
    """The summary, with the first line of this head in front."""
    if is_record_line(summary.partition("\n")[0]):
        return summary
    return f"{record_line(head)}\n\n{summary}"


def without_record_line(summary: str) -> str:
    """What a summary tells, without the first line that is ours."""
    return "\n".join(line for line in summary.splitlines() if not is_record_line(line)).strip()


@cache
def _record_lines() -> frozenset[str]:
    lines = (words(language)["record"] for language in languages())
    return frozenset(_without_numbers(re.sub(r"\{\w+\}", "", line)) for line in lines)


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d\s,.]", "", line)


def sections_of(markdown: str) -> list[tuple[str, list[str]]]:
    """(heading, its lines) in order, without bullets and blank lines; the heading may be ''."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    lines = markdown.splitlines()
    for line, is_quoted in zip(lines, in_code(lines), strict=True):
        if is_record_line(line):
            continue
        # What is fenced is quoted: it may look like a heading, and is none.
        heading = None if is_quoted else re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if heading:
            sections.append((heading[1], []))
        elif line.strip():
            sections[-1][1].append(re.sub(r"^\s*[-*]\s+", "", line).rstrip())
    return [(heading, lines) for heading, lines in sections if heading or lines]


def in_code(lines: Sequence[str]) -> list[bool]:
    """For each line whether it belongs to a block of code. One that never ends is none.

    Who writes a summary and who reads one go by this alone: what is code to one of them and a
    heading to the other would be a section that nobody checked.
    """
    is_code = [False] * len(lines)
    begin, mark = -1, ""
    for index, line in enumerate(lines):
        fence = _FENCE.match(line)
        if mark and line.strip().startswith(mark):
            is_code[begin : index + 1] = [True] * (index + 1 - begin)
            mark = ""
        elif fence and not mark:
            begin, mark = index, fence[1]
    return is_code
