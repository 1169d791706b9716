"""The exact values in a summary: which it carries, how they are listed, and which are lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from llm.parts import Message

from .facts import Fact, texts_of
from .language import words
from .summary import Head, sections_of
from .tokens import count_text

SHARE_OF_VALUES = 0.6
"How much of a summary may be a list of values: without prose nobody knows what they are for."
SHARE_BESIDE_PROSE = 0.4
"How much of its room the values of a summary get whose prose fills the room without them."
WORTH_GROUPING = 0.65
"""Where so many of the values fit that would fit with each folder written once, paths are written
whole: that is how they are searched for."""

_FOLDER_LINE = re.compile(r"^[-*] (\S*)/: (.+)", re.MULTILINE)
_WORDS = re.compile(r"\w+", re.ASCII)
_NUMBERS = re.compile(r"\d[\d.,]*")
_GROUPS = {
    "uuid": "id", "hash": "id", "code": "id", "ticket": "id", "email": "id",
    "hex": "id", "slug": "id", "phone": "number", "range": "number",
    "version": "number", "date": "number", "time": "number", "amount": "number",
    "bare": "number", "small": "number",
    "dotted": "name", "flag": "name", "kebab": "name", "word": "name", "pair": "name",
}  # fmt: skip


def with_values(summary: str, head: Head, room: int | None = None) -> str:
    """The summary and, in its section of exact values, those of the head that it does not carry.

    Nothing that the summary says is taken away. Values are added up to `room` tokens for the
    whole, by default what the head says, and not more of them than three fifths of it.
    """
    heading = words(head.language)["values"]
    size = count_text(summary)
    listed = sum(count_text(line) for line in _section(summary, heading))
    share = int(SHARE_OF_VALUES / (1 - SHARE_OF_VALUES) * (size - listed)) - listed
    longest = min(_room(head, size) if room is None else room, size + share)
    # Each takes a token at least.
    missing = list(islice(not_carried(head.facts, summary), max(0, longest - size)))

    def fitting(by_folder: bool) -> int:
        return most(lambda number: count_text(added(number, by_folder)) <= longest, len(missing))

    def added(number: int, by_folder: bool) -> str:
        return _added(summary, heading, lines_of(missing[:number], by_folder=by_folder))

    whole, grouped = fitting(False), fitting(True)
    by_folder = whole < WORTH_GROUPING * grouped
    number = grouped if by_folder else whole
    return added(number, by_folder) if number else summary


def lacking_prose(summary: str, head: Head) -> int:
    """How many tokens more the prose of a summary needs, or the values that were used do not fit.

    0 where there are only few of them, or where the prose fills its share of the room.
    """
    size = count_text(summary)
    heading = words(head.language)["values"]
    prose = size - sum(count_text(line) for line in _section(summary, heading))
    used = (fact for fact in head.facts if fact.is_used)
    missing = list(islice(not_carried(used, summary), head.room))
    lines = lines_of(missing, by_folder=True)
    # Some that only tools printed are listed before the last of them.
    needed = int(1.15 * count_text("\n".join(lines))) + size - prose
    room = min(_room(head, size), head.room)
    return int((1 - SHARE_OF_VALUES) * min(needed / SHARE_OF_VALUES, room)) - prose


def _room(head: Head, size: int) -> int:
    """How long a summary of this size may be with its values.

    Prose that fills the room leaves the values two fifths of it all the same, unless that would
    be refused: models write as much as they like, and what they leave out are the values. Half of
    what is summarized is the end of it, or a short head would gain nothing.
    """
    room = max(head.room, size + int(SHARE_BESIDE_PROSE * head.room))
    return min(room, head.tokens // 2, room if head.most is None else head.most)


def most(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that fits, where all smaller ones do, or nearly that."""
    # There are tens of thousands, of which some hundred fit: only what is near them is tried, and
    # whether the last of them gets in is not worth another look at all of them.
    high = 64
    while high < limit and fits(high):
        high *= 2
    low, high = 0 if high == 64 else high // 2, min(high, limit)
    while high - low > low // 50:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def lines_of(facts: Sequence[Fact], *, by_folder: bool) -> list[str]:
    """Facts as lines: paths, then URLs, ids, numbers, names, commands and errors.

    `by_folder` writes a folder of several files once, "src/app/: a.py b.py".
    """
    groups: dict[str, list[str]] = {}
    values = dict.fromkeys(fact.value for fact in facts)
    # "session_id" is told by "state.session_id", and 1.5 by "1.5 m".
    parts = {
        part
        for value in values
        for pattern in (_WORDS, _NUMBERS)
        for part in pattern.findall(value)
        if part != value
    }
    for fact in facts:
        if fact.value in parts:
            continue
        groups.setdefault(group_of(fact), []).append(fact.value)
    lines = list(_path_lines(groups.get("path", ()), by_folder))
    for group in ("url", "id", "number", "name"):
        named = groups.get(group)
        if named:
            lines.append((", " if any(" " in value for value in named) else " ").join(named))
    lines += [f"`{value}`" for value in groups.get("command", ())]
    return lines + groups.get("error", [])


def _path_lines(paths: Iterable[str], by_folder: bool) -> Iterator[str]:
    folders: dict[str, list[str]] = {}
    for path in _longest(paths):
        folder, slash, name = path.rpartition("/")
        folders.setdefault(folder + slash, []).append(name)
    alone = []
    for folder, names in folders.items():
        if by_folder and folder and len(names) > 1:
            yield f"{folder}: {' '.join(names)}"
        else:
            alone += [folder + name for name in names]
    if alone:
        yield " ".join(alone)


def _longest(paths: Iterable[str]) -> list[str]:
    """Without those that another one ends with, such as "app/a.py" beside "src/app/a.py"."""
    by_name: dict[str, list[str]] = {}
    for path in paths:
        same = by_name.setdefault(path.rpartition("/")[2], [])
        if not any(_ends_with(other, path) for other in same):
            same[:] = [path, *(other for other in same if not _ends_with(path, other))]
    return [path for same in by_name.values() for path in same]


def _ends_with(path: str, end: str) -> bool:
    return f"/{path}".endswith("/" + end.removeprefix("./"))


def not_carried(facts: Iterable[Fact], text: str) -> Iterator[Fact]:
    """The facts that a text does not have."""
    grouped = _grouped_paths(text)
    # Most facts are in no summary, and to search it for each of them would take a while.
    known = frozenset(_WORDS.findall(text))
    for fact in facts:
        word = _WORDS.search(fact.value)
        is_possible = word is None or word[0] in known
        if not ((is_possible and stands_in(fact.value, text)) or _is_grouped(fact, grouped)):
            yield fact


def _is_grouped(fact: Fact, grouped: dict[str, list[str]]) -> bool:
    if fact.kind != "path":
        return False
    folder, _, name = fact.value.removeprefix("./").rpartition("/")
    return any(f"/{known}".endswith(f"/{folder}") for known in grouped.get(name, ()))


def _grouped_paths(text: str) -> dict[str, list[str]]:
    """The folders of each name that stands behind a folder."""
    folders: dict[str, list[str]] = {}
    for folder, names in _FOLDER_LINE.findall(text):
        for name in names.split():
            folders.setdefault(name, []).append(folder)
    return folders


def stands_in(value: str, text: str) -> bool:
    """Whether a text has a value character for character, and not as a part of a longer word."""
    return place_of(value, text) >= 0


def place_of(value: str, text: str) -> int:
    """Where a text has a value first so that `stands_in` is true, -1 where it never does."""
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        if not (
            _goes_on(value[0], text[max(0, start - 1) : start])
            or _goes_on(value[-1], text[end : end + 1])
        ):
            return start
        start = text.find(value, start + 1)
    return -1


def _goes_on(character: str, neighbour: str) -> bool:
    return _is_word(character) and _is_word(neighbour)


def _is_word(character: str) -> bool:
    # Scripts without spaces write a number or a name in the middle of a sentence.
    return character.isascii() and (character.isalnum() or character == "_")


def group_of(fact: Fact) -> str:
    """What kind of value it is, in a word: path, url, id, number, name, command or error."""
    return _GROUPS.get(fact.kind, fact.kind)


def lost_values(facts: Iterable[Fact], summary: str, tail: Sequence[Message]) -> list[Fact]:
    """The facts that neither the summary nor the messages behind it have."""
    kept = "\n".join(text for message in tail for _, text in texts_of(message))
    return list(not_carried(not_carried(facts, summary), kept))


def _section(markdown: str, heading: str) -> list[str]:
    return next((lines for title, lines in sections_of(markdown) if title == heading), [])


def _added(summary: str, heading: str, lines: Sequence[str]) -> str:
    """The summary with further lines in its last section, which is a new one if need be."""
    summary = summary.rstrip()
    titles = [title for title, _ in sections_of(summary)]
    if titles[-1:] != [heading]:
        summary += f"\n\n## {heading}"
    return "\n".join([summary, *(f"- {line}" for line in lines)])
