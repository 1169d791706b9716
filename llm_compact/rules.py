"""The user's standing rules, found in what they said and quoted word for word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from llm.parts import Message

from .conversation import is_request, text_of
from .estimate import estimate
from .language import all_words, words
from .summarizers.cues import LONGEST_SENTENCE, is_firm, is_question, is_rule, sentences
from .summary import Head, in_code, sections_of
from .tokens import count_text
from .values import stands_in

SHARE_OF_ROOM = 4
"""A quarter of a summary goes to rules, and half of it where the prose leaves that free: each that
is none would cost in every request."""
SHORT_MESSAGE, LONG_MESSAGE = 40, 400
"Tokens: what is quoted as a whole, and what is rather a document than said."
LONGEST_RULE = 100

# Below a line such as "Rules:" each item is one, however it is worded.
_LIST = re.compile(
    r"^(?P<lead>.{2,200})[:：][ \t]*\n(?P<items>(?:[ \t]*(?:[-*•]|\d+[.)])[ \t]+\S.*(?:\n|\Z))+)",
    re.MULTILINE,
)
_RULES = re.compile(
    r"\b(?:rules?|guidelines|conventions|regeln|règles|reglas|regras|regole|kurallar\w*|правила)\b"
    r"|规则|规矩|要求|ルール|決まり|규칙",
    re.IGNORECASE,
)
# How a rule stands in a summary: between quotes, with the number of its message.
_QUOTED = re.compile(r'"(?P<text>.+)"(?: \[(?P<message>\d+)\])?')


@dataclass(frozen=True)
class Rule:
    """Something that a user has laid down for all that follows."""

    text: str
    "Word for word, on one line."
    message: int
    "Number of its message in the conversation, from 1; 0 where that is not known."
    is_firm: bool
    "Whether it says by itself that it holds for good."
    is_said: bool
    "Whether it stands in a message that somebody typed, and not in a document."


def standing_rules(messages: Sequence[Message]) -> list[Rule]:
    """The rules in a conversation, in order. One that was said again stands where it was last.

    A later rule may replace an earlier one: both stay, and whoever reads them reads the later one
    last.
    """
    found: dict[str, Rule] = {}
    for index in range(len(messages)):
        if is_request(messages, index):
            text = text_of(messages[index])
            is_said = estimate(text[: 8 * LONG_MESSAGE]) <= LONG_MESSAGE
            for quote in _quotes(text):
                found.pop(quote, None)
                found[quote] = Rule(quote, index + 1, is_firm(quote), is_said)
    return list(found.values())


def quoted_rules(summary: str) -> list[Rule]:
    """The rules that a summary quotes: whoever found them in the conversation, they were said."""
    headings = {said["rules"] for said in all_words().values()}
    lines = (line for title, told in sections_of(summary) if title in headings for line in told)
    return [
        Rule(found["text"], int(found["message"] or 0), is_firm(found["text"]), is_said=True)
        for found in map(_QUOTED.fullmatch, lines)
        if found
    ]


def with_rules(summary: str, head: Head) -> str:
    """The summary of a model with the rules that it does not quote word for word."""
    quoted = _plain("\n".join([summary, *head.pins]))
    free = min(head.room // 2, head.room - count_text(summary))
    chosen = chosen_rules(head, max(head.room // SHARE_OF_ROOM, free))
    missing = [rule for rule in chosen if not _is_in(rule, quoted)]
    if not missing:
        return summary
    return with_lines(summary, f"## {words(head.language)['rules']}", list(map(_line, missing)))


def said_rules(head: Head) -> list[Rule]:
    """The rules that somebody typed, and that no document lays down."""
    return [rule for rule in standing_rules(head.originals) if rule.is_said]


def lost_rules(rules: Sequence[Rule], summary: str, tail: Sequence[Message]) -> list[str]:
    """The rules that neither the summary nor the messages behind it say."""
    kept = _plain("\n".join([summary, *map(text_of, tail)]))
    return [rule.text for rule in rules if not _is_in(rule, kept)]


def chosen_rules(head: Head, room: int) -> list[Rule]:
    """The rules that fit `room` tokens, in order.

    Those of the previous summary hold until the user says otherwise. Where they are too many, the
    most explicit ones and the latest of them are chosen.
    """
    found = standing_rules(head.originals)
    known = "\n".join(rule.text for rule in found)
    earlier = [rule for rule in quoted_rules(head.previous or "") if rule.text not in known]
    rules = sorted([*earlier, *found], key=lambda rule: rule.message)
    left = room - count_text(f"\n\n## {words(head.language)['rules']}")
    chosen = set()
    for rule in sorted(rules, key=lambda r: (r.is_said, r.is_firm, r.message), reverse=True):
        cost = count_text(_line(rule)) + 1
        if cost <= left:
            chosen.add(rule)
            left -= cost
    return [rule for rule in rules if rule in chosen]


def rules_tokens(head: Head) -> int:
    """What `with_rules` adds to a summary that quotes none of them."""
    lines = [_line(rule) for rule in chosen_rules(head, head.room // SHARE_OF_ROOM)]
    heading = f"\n\n## {words(head.language)['rules']}"
    return count_text("\n".join([heading, *lines])) + 2 if lines else 0


def with_lines(summary: str, heading: str, lines: Sequence[str]) -> str:
    """The summary with more lines at the end of a section.

    A section that it does not have comes last, but before the exact values.
    """
    written = summary.rstrip().splitlines()
    places = [at for at in _headings(written) if written[at].rstrip() == heading]
    if places:
        end = _end_of_section(written, places[0])
        added = list(lines)
    else:
        values = [at for at in _headings(written) if written[at].rstrip() in _values_headings()]
        is_last = bool(values) and _end_of_section(written, values[-1]) == len(written)
        end = values[-1] if is_last else len(written)
        added = ["", heading, *lines]
    before = "\n".join(written[:end]).rstrip()
    rest = ["", *written[end:]] if end < len(written) else []
    return "\n".join([before, *added, *rest])


def _end_of_section(lines: Sequence[str], start: int) -> int:
    return next((at for at in _headings(lines) if at > start), len(lines))


def _headings(lines: Sequence[str]) -> Iterator[int]:
    """The places of the headings. What looks like one in a block of code is none."""
    for at, (line, is_code) in enumerate(zip(lines, in_code(lines), strict=True)):
        if not is_code and re.match(r"#{1,6}\s", line):
            yield at


@cache
def _values_headings() -> frozenset[str]:
    return frozenset(f"## {said['values']}" for said in all_words().values())


def _quotes(text: str) -> Iterator[str]:
    """The rules in a message: sentences, the items of a list of rules, or all of a short one."""
    said = sentences(text, least=1)
    listed = {item: quote for found in _LIST.finditer(text) for item, quote in _items(found)}
    rules = [sentence for sentence in said if sentence in listed or _is_whole_rule(sentence)]
    whole = " ".join(text.split())
    if rules and not listed and _is_all_rules(whole, said, rules):
        yield whole
        return
    for sentence in rules:
        quote = listed.get(sentence, sentence)
        if estimate(quote) <= LONGEST_RULE:
            yield quote


def _items(found: re.Match[str]) -> Iterator[tuple[str, str]]:
    """The items of a list of rules, and how each is quoted."""
    lead = " ".join(found["lead"].split())
    # "Never do this" belongs to each of its items, which would say the opposite alone.
    is_order = is_rule(lead)
    if not is_order and not _RULES.search(lead):
        return
    for item in sentences(found["items"], least=1):
        if not is_question(item):
            yield item, f"{lead}: {item}" if is_order else item


def _is_whole_rule(sentence: str) -> bool:
    # Much longer than any rule that is quoted: most of it would be looked at for nothing.
    is_short = len(sentence) <= LONGEST_SENTENCE
    return is_short and not sentence.endswith((":", "：")) and is_rule(sentence)


def _is_all_rules(whole: str, said: Sequence[str], rules: Sequence[str]) -> bool:
    """Whether a message says little else, so that its words belong together.

    What is a question or a request must not be asked again each time that its rule is read.
    """
    if estimate(whole) > SHORT_MESSAGE or "`" * 3 in whole or whole.startswith((">", "#", "<")):
        return False
    return not any(map(is_question, said)) and 2 * len(rules) > len(said)


def told(rule: Rule) -> str:
    """The rule as it stands in a summary."""
    return f'"{rule.text}"' + (f" [{rule.message}]" if rule.message else "")


def _line(rule: Rule) -> str:
    return f"- {told(rule)}"


def _is_in(rule: Rule, quoted: str) -> bool:
    # A model may leave out the full stop.
    return stands_in(_plain(rule.text).rstrip(".!。！"), quoted)


def _plain(text: str) -> str:
    return " ".join(text.split())
