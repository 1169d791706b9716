"""A summarizer without a model: it picks the lines that matter. Offline, free, deterministic.

Everything it writes is quoted from the conversation, so it invents nothing and costs nothing.
It reads the original messages of all generations, not the summaries made of them, and so it
does not fade from one compaction to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ..language import words
from ..rules import SHARE_OF_ROOM, chosen_rules, told, with_lines
from ..summary import Answer, Head, Usage, Watch, record_line
from ..tokens import count_text
from ..values import SHARE_OF_VALUES, lacking_prose, with_values
from .line import Line
from .said import CLOSED, SENTENCE, SHARE_OF_REQUESTS, said_lines
from .worked import earlier_lines, worked_lines

MOST_TOKENS = 4_000
# A tenth of a short chat says nothing: it may have a quarter, up to this (tokens).
SHORT_CHAT_TOKENS = 150
LEAST_RULES = 60
"Tokens. In a very short summary one rule matters more than all the rest."
LEAST_QUOTES = 20
"Tokens. Less than that is no sentence."
ENOUGH = 400
"Messages. Among the latest of these, and the first, is more to quote than there is room for."
LEAST_PROSE = 120
"Tokens. In a very short summary values come after what was asked and found."
SHARE_OF_FAR = 1 / 3
"""How much of the prose is for what the previous summary stood for, while there is news to tell:
the longer that past becomes, the fewer words of it are told."""
LEAST_LEFT = 0.05
"The share of the room that is worth another try at filling it."

# The share of the prose that each section may fill before the others have had their turn.
_SHARES = {
    "requests": SHARE_OF_REQUESTS,
    "earlier": 0.25,
    "statements": 0.24,
    "calls": 0.14,
    "errors": 0.12,
}
_LEFTOVERS = ("requests", "statements", "calls", "errors", "earlier")


class Extractive:
    """The summarizer `extractive`."""

    name = "extractive"
    prompt_version = "2"

    def summarize(self, head: Head, watch: Watch) -> Answer:
        """Never fails; a tenth of the head at most, or what the previous summary had."""
        summary = extract(head)
        watch.text(summary)
        return Answer(summary, Usage(input=0, output=0, calls=0))


def extract(head: Head) -> str:
    """The summary of a head, as Markdown in the language of the conversation."""
    said = words(head.language)
    most = budget(head)
    begin = _begin(head, most)
    room = most - count_text(begin)
    lines = _candidates(head, said["open"], room)

    def prose(room: int) -> str:
        chosen = _choose(lines, said, room, begin)
        # The whole may count a little more than its lines, and the next generation adds to that.
        while chosen and count_text(_rendered(begin, said, chosen)) > most:
            chosen.pop()
        return _rendered(begin, said, chosen)

    prose_room = max(int(room * (1 - SHARE_OF_VALUES)), min(room, LEAST_PROSE))
    summary = with_values(prose(prose_room), head, most)
    left = most - count_text(summary)
    # What the values do not need, the prose may have.
    return (
        with_values(prose(prose_room + left), head, most) if left > LEAST_LEFT * most else summary
    )


def with_quotes(summary: str, head: Head) -> str:
    """The summary of a model and, where it says little, what was asked and what came of it.

    So much that the values which were used have their room: a list alone says nothing.
    """
    room = lacking_prose(summary, head)
    if room < LEAST_QUOTES:
        return summary
    said = words(head.language)
    messages = head.originals
    if len(messages) > ENOUGH:
        messages = [messages[0], *messages[-ENOUGH:]]
    chosen = _choose(list(said_lines(messages, said["open"], room)), said, room, summary)
    for section in ("requests", "statements"):
        told = _by_paragraph(sorted((x for x in chosen if x.section == section), key=_place))
        if told:
            summary = with_lines(summary, f"## {said[section]}", [f"- {text}" for text in told])
    return summary


def _begin(head: Head, most: int) -> str:
    """The first line, and the rules of the user: they hold, whatever there is room for."""
    room = max(most // SHARE_OF_ROOM, min(most // 2, LEAST_RULES))
    rules = [f"- {told(rule)}" for rule in chosen_rules(head, room)]
    heading = f"## {words(head.language)['rules']}"
    return "\n\n".join([record_line(head), *(["\n".join([heading, *rules])] if rules else [])])


def _rendered(begin: str, said: Mapping[str, str], chosen: Sequence[Line]) -> str:
    blocks = [begin]
    for section in _SHARES:
        lines = sorted((line for line in chosen if line.section == section), key=_place)
        if lines:
            told = _by_paragraph(lines)
            blocks.append("\n".join([f"## {said[section]}", *(f"- {text}" for text in told)]))
    return "\n\n".join(blocks)


def _by_paragraph(lines: Sequence[Line]) -> list[str]:
    """The texts of lines in order; the sentences of a paragraph are one, with "…" for a gap."""
    told: list[str] = []
    last: Line | None = None
    for line in lines:
        if last and line.paragraph and line.paragraph == last.paragraph:
            is_next = line.place - last.place < 1.5 * SENTENCE
            between = "" if told[-1].endswith(CLOSED) else " "
            told[-1] += (between if is_next else " … ") + line.text.removeprefix(line.who)
        else:
            told.append(line.text)
        last = line
    return told


def budget(head: Head) -> int:
    """How many tokens the summary may have: what was asked for, else a tenth of what it replaces.

    The previous summary stands for far more than its own size, so its successor may be as large:
    a tenth of it again would fade with every generation.
    """
    if head.most is not None:
        return head.room
    floor = min(SHORT_CHAT_TOKENS, head.tokens // 4)
    return min(MOST_TOKENS, max(head.tokens // 10, floor, count_text(head.previous or "")))


def _place(line: Line) -> float:
    return line.place


def _choose(lines: Sequence[Line], said: Mapping[str, str], room: int, begin: str) -> list[Line]:
    """The best lines of each section within its share, then whatever else there is room for.

    In the order of the choice: the last ones are those that matter least. `begin` is what the
    summary says already.
    """
    by_section = {
        section: sorted((x for x in lines if x.section == section), key=lambda x: -x.score)
        for section in _SHARES
    }
    shares = sum(_SHARES[section] for section, found in by_section.items() if found) or 1
    chosen: list[Line] = []
    begun: set[str] = set()
    spent = dict.fromkeys(_SHARES, 0.0)
    text = begin
    left: float = room
    left_for_far: float = SHARE_OF_FAR * room

    def fill(section: str, allowance: float, lines: float = math.inf) -> None:
        nonlocal text, left, left_for_far
        too_long = []
        for line in by_section[section]:
            if _is_told(line, text):
                continue
            if lines == 0:
                too_long.append(line)
                continue
            cost = line.tokens + 2
            if section not in begun:
                cost += count_text(said[section]) + 3
            if cost <= min(allowance, left, left_for_far if line.is_far else left):
                chosen.append(line)
                begun.add(section)
                text += line.text + "\n"
                allowance -= cost
                spent[section] += cost
                left -= cost
                left_for_far -= cost if line.is_far else 0
                lines -= 1
            else:
                too_long.append(line)
        # There are tens of thousands: the leftovers go through only what has a chance.
        by_section[section] = too_long

    # However little room there is: what was asked, and something that came of it.
    fill("requests", left, lines=1)
    fill("statements", left, lines=1)
    for section in _SHARES:
        fill(section, room * _SHARES[section] / shares - spent[section])
    for section in _LEFTOVERS:
        fill(section, left)
    left_for_far = left
    for section in _LEFTOVERS:
        fill(section, left)
    # A request that was chosen later may say what a sentence of it said before.
    quoted = "\n".join(line.text for line in chosen if line.section == "requests")
    return [line for line in chosen if line.section != "statements" or not _is_told(line, quoted)]


def _is_told(line: Line, text: str) -> bool:
    """Whether the rules or a quoted request say it already, or begin to."""
    if line.section == "requests":
        return line.text in text
    said = line.text.removeprefix(line.who).rstrip("…")
    return line.section == "statements" and said[: max(16, len(said) // 2)] in text


def _candidates(head: Head, open_mark: str, room: int) -> list[Line]:
    messages = head.originals
    news = len(messages) - len(head.messages)
    lines = chain(said_lines(messages, open_mark, room), worked_lines(messages))
    # The first request is what all of it is about.
    told = (replace(line, is_far=0 < line.place < news) for line in lines) if news else lines
    return [*told, *earlier_lines(head)]
