"""A summarizer without a model: it picks the lines that matter. Offline, free, deterministic.

Everything it writes is quoted from the conversation, so it invents nothing and costs nothing.
It reads the original messages of all generations, not the summaries made of them, and so it
does not fade from one compaction to the next.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from itertools import chain, pairwise

from llm.parts import Message, ToolCallPart, ToolResultPart

from ..conversation import answered_calls, is_request, text_of
from ..estimate import estimate
from ..facts import error_lines, exact_values
from ..language import words
from ..rules import SHARE_OF_ROOM, chosen_rules, told, with_lines
from ..summary import Answer, Head, Usage, Watch, record_line, sections_of
from ..tokens import count_text
from ..transcript import FRAGMENT_NOTE
from ..values import SHARE_OF_VALUES, lacking_prose, with_values
from .corrections import Corrections
from .cues import (
    is_assent,
    is_greeting,
    is_prose,
    is_question,
    is_talk,
    is_vague,
    outcomes,
    sentences,
    sentences_by_line,
    without_notes,
)

MOST_TOKENS = 4_000
# A tenth of a short chat says nothing: it may have a quarter, up to this (tokens).
SHORT_CHAT_TOKENS = 150
LEAST_RULES = 60
"Tokens. In a very short summary one rule matters more than all the rest."
LEAST_QUOTES = 20
"Tokens. Less than that is no sentence."
LEAST_PROSE = 120
"Tokens. In a very short summary values come after what was asked and found."
SHARE_OF_FAR = 1 / 3
"""How much of the prose is for what the previous summary stood for, while there is news to tell:
the longer that past becomes, the fewer words of it are told."""
LEAST_LEFT = 0.05
"The share of the room that is worth another try at filling it."
PARAGRAPH, SENTENCE = 1e-4, 1e-7
"How far apart the lines of a message and their sentences are in the conversation."
LONGEST_REQUEST = 20_000
"Characters. Nobody types more, and what they paste comes behind what they ask."
CORRECTED, CORRECTS = -2.0, 2.0
"What it says of a sentence that it was corrected, and that it corrects."
SHORTEST_LINE = 8
"Tokens that a sentence in a summary takes at least."
ECHO = 0.25
"A sentence of which so few words are new says again what others say."
LEAST_CHAT, LATEST_OF_CHAT = 12, 3
"Messages that tell what a conversation is, and those of a chat's that are quoted as such."
WORD_WEIGHT, WORD_WEIGHT_AT_WORK = 0.1, 0.03
"Where somebody works for somebody, what was decided and done counts for more than what is new."
LEAST_SALIENCE, LEAST_OF_CHAT = 0.3, -0.4
"Below this a sentence only announces, pleases or asks. People who talk seldom say more than that."

# The share of the prose that each section may fill before the others have had their turn.
_SHARES = {
    "requests": 0.24,
    "earlier": 0.25,
    "statements": 0.24,
    "calls": 0.14,
    "errors": 0.12,
}
_LEFTOVERS = ("requests", "statements", "calls", "errors", "earlier")

_CHANGES = re.compile(
    r"^\w*(write|edit|create|update|delete|insert|book|cancel|commit|apply|patch)"
)
_PATH_ARGUMENT = re.compile("path|file|url|command|query", re.IGNORECASE)
_TERM = re.compile(r"[^\W\d_]{4,}|[\u30a1-\u30ff]{3,}|[\u4e00-\u9fff]{2}|[\uac00-\ud7af]{2}")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}|\d+|[「《“][^」》”]{2,20}[」》”]")
# Colours and other orders to a terminal, which tools print.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
# When it was said, in front of a message, as keepers of diaries and of chats write it.
_DATED = re.compile(r"\s*\[[^\]\n]{0,40}\d{4}[^\]\n]{0,40}\]")
_CLAUSE = re.compile("[，、；：。！？,;]")
# The beginning of a number or a name, or of a syllable of several characters.
_UNFINISHED = re.compile(r"(?:[A-Za-z0-9_.,:/-]+|[\u1100-\u11ff]+)$")
_CLOSED = ("。", "！", "？", "；", "」", "』", "”", "）")
_MARK = re.compile(r"^(?:[-*+•>#|]+\s+)+")
_DIGITS = re.compile(r"\d+")
_LETTERS = re.compile(r"\w+")
_PIECES = re.compile(r"…|\[→ [^\]]*\]| -> |[(),\"]|\b\w+=|user: |\d+x")


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


Errors = Mapping[int, Sequence[str]]
"The error lines of each tool output, by the identity of its part: to find them takes a while."


class Extractive:
    """The summarizer `extractive`."""

    name = "extractive"
    prompt_version = "1"

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
    quoted = ("requests", "statements")
    lines = [x for x in _candidates(head, said["open"], room) if x.section in quoted]
    chosen = _choose(lines, said, room, summary)
    for section in quoted:
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
            between = "" if told[-1].endswith(_CLOSED) else " "
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
    spoken = spoken_words(messages)
    known = Corrections(messages)
    errors = {
        id(part): error_lines(part.output)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResultPart) and not part.exception
    }
    news = len(messages) - len(head.messages)
    lines = chain(
        _request_lines(messages, spoken, known, open_mark, room),
        _without_echoes(list(_statement_lines(messages, spoken, known)), spoken, room),
        _call_lines(messages, errors),
        _error_lines(messages, errors),
    )
    # The first request is what all of it is about.
    told = (replace(line, is_far=0 < line.place < news) for line in lines) if news else lines
    return [*told, *_earlier_lines(head)]


def _request_lines(
    messages: Sequence[Message],
    spoken: Spoken,
    known: Corrections,
    open_mark: str,
    room: int,
) -> Iterator[Line]:
    """What the user asked, quoted; the first request is the goal, the last ones are the present."""
    asked = [index for index in range(len(messages)) if is_request(messages, index)]
    tokens = min(60, max(24, int(room * _SHARES["requests"] / (len(asked) or 1))))
    last_answer = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1)
    last_said = {_kind(text_of(messages[index]), "user"): index for index in asked}
    # Of two people who talk, nobody asks for anything: what they say is told by its sentences.
    latest = asked[-LATEST_OF_CHAT:]
    is_first = True
    for index in asked:
        answered = index < last_answer
        text = text_of(messages[index])
        whole = without_notes(text).strip()
        # What is still to be answered is told, even if nobody typed it, and so is a document.
        whole = whole if whole or (answered and FRAGMENT_NOTE not in text) else text
        # The goal, and what is still to be done, may be told at more length.
        longest = tokens if answered and not is_first else min(60, 3 * tokens // 2)
        is_repeated = last_said[_kind(text, "user")] != index
        text = known.told(_quote(whole, longest, spoken), index)
        if not text or is_repeated or (answered and is_assent(text)):
            continue
        if answered and len(asked) > 1 and is_greeting(text):
            continue
        if spoken.is_chat and not is_first and index not in latest:
            continue
        mark = "" if answered else f" ({open_mark})"
        score = _salience(text.rstrip("?？"), "user", spoken) + _recency(index, messages)
        score += 5 * (not answered) + 0.5 * is_question(text)
        score += 4 * is_first
        is_first = False
        yield Line("requests", f'"{text}"{mark}', score, index)


def _quote(text: str, tokens: int, spoken: Spoken) -> str:
    """What a message says, in so many tokens: as it is, or in those sentences that say most."""
    dated = _DATED.match(text)
    if dated:
        return f"{dated[0].strip()} {_quote(text[dated.end() :], tokens, spoken)}"
    whole = " ".join(text.split()).strip('"')
    # What is pasted behind a request may be a novel.
    if len(whole) < 20 * tokens and estimate(whole) <= tokens:
        return whole
    told = (s for s in sentences(text[:LONGEST_REQUEST], 2) if is_prose(s))
    prose = dict.fromkeys(s for s in told if not (is_assent(s) or is_greeting(s)))
    said = list(enumerate(prose))
    if not said:
        return shorten(whole, tokens)

    def weight(at: tuple[int, str]) -> tuple[float, int]:
        place, sentence = at
        # What is asked is what a request is about, and in a chat as good as what is told.
        asks = (1.5 if spoken.is_chat else 2.5) * is_question(sentence)
        salience = _salience(sentence, "user", spoken) + asks
        # Whoever asks for work says what in the beginning, and adds to it.
        first = 0 if spoken.is_chat or is_talk(sentence) else max(0, 3 - place)
        return salience + first, -place

    ranked = sorted(said, key=weight, reverse=True)
    chosen = [(ranked[0][0], shorten(ranked[0][1], tokens))]
    left = tokens - estimate(chosen[0][1])
    for place, sentence in ranked[1:]:
        cost = estimate(sentence) + 1
        if cost <= left:
            chosen.append((place, sentence))
            left -= cost
    chosen.sort()
    quote = chosen[0][1]
    for (before, _), (place, sentence) in pairwise(chosen):
        between = "" if quote.endswith(_CLOSED) else " "
        quote += (between if place == before + 1 else " … ") + sentence
    return quote


def _statement_lines(
    messages: Sequence[Message], spoken: Spoken, known: Corrections
) -> Iterator[Line]:
    """Sentences that tell a decision, a result or a fact."""
    seen: dict[str, int] = {}
    least = LEAST_OF_CHAT if spoken.is_chat else LEAST_SALIENCE
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role not in ("user", "assistant"):
            continue
        date = _DATED.match(text_of(message)[:100])
        dated = f"{date[0].strip()} " if date else ""
        for number, line in enumerate(sentences_by_line(text_of(message))):
            for position, sentence in enumerate(line):
                place = index + number * PARAGRAPH + position * SENTENCE
                # What was said again later is told once, as it was said last.
                if seen.setdefault(_kind(sentence, message.role), index) != index:
                    continue
                salience = _salience(sentence, message.role, spoken)
                if salience < least or is_vague(sentence) or not is_prose(sentence):
                    continue
                who = ("" if message.role == "assistant" else "user: ") + dated
                quote = shorten(sentence, 50)
                text = who + known.told(quote, index)
                # The correction is what holds; what it corrects is told if there is room.
                salience += CORRECTED * (text != who + quote)
                salience += CORRECTS * known.is_one(quote, index)
                score = salience + 0.5 * _recency(index, messages)
                yield Line("statements", text, score, place, (index, number), who)


def _kind(sentence: str, role: str) -> str:
    """A sentence without what may differ where it is said again."""
    # "9 of 10 pass" takes the place of "3 of 10 pass"; what a user counts are facts.
    sentence = _DIGITS.sub("0", sentence) if role == "assistant" else sentence
    return "".join(_LETTERS.findall(sentence)).lower()


@dataclass(frozen=True)
class Spoken:
    """The words of a conversation, and how it is spoken."""

    topics: frozenset[str]
    "Those that it comes back to, without those that it always uses."
    messages: Mapping[str, int]
    "In how many messages each of its words is."
    count: int
    "Of the messages with words."
    is_chat: bool
    "Whether two people talk, instead of one who works for the other."
    saliences: dict[str, float] = field(default_factory=dict)
    "What each sentence tells, once it was looked at."


def spoken_words(messages: Sequence[Message]) -> Spoken:
    said: Counter[str] = Counter()
    texts = [text_of(message) for message in messages if message.role in ("user", "assistant")]
    for text in texts:
        said.update(set(_terms(text)))
    most = max(4, len(texts) // 12)
    topics = frozenset(term for term, times in said.items() if 2 <= times <= most)
    return Spoken(topics, said, len(texts), _is_chat(messages))


def _is_chat(messages: Sequence[Message]) -> bool:
    """Whether both sides ask and tell about as much, in words alone."""
    if len(messages) < LEAST_CHAT or any(message.role == "tool" for message in messages):
        return False
    user = [text_of(message) for message in messages if message.role == "user"]
    other = [text_of(message) for message in messages if message.role == "assistant"]
    asked_back = sum("?" in text or "？" in text for text in other)
    is_even = sum(map(len, other)) < 2 * sum(map(len, user))
    has_code = any("```" in text for text in (*user, *other))
    return is_even and not has_code and asked_back >= 0.15 * len(other)


def _terms(text: str) -> list[str]:
    return _TERM.findall(text[:4_000].lower())


def _salience(sentence: str, role: str, spoken: Spoken) -> float:
    """How much a sentence tells. A request's are looked at as quotes and as statements."""
    known = spoken.saliences.get(sentence)
    if known is None:
        known = spoken.saliences[sentence] = _told_by(sentence, spoken)
    return known + 0.3 * (role == "user" and not spoken.is_chat)


def _told_by(sentence: str, spoken: Spoken) -> float:
    score = 1.2 * min(2, outcomes(sentence))
    score += 0.8 * min(4, len(exact_values(sentence)))
    score += 0.2 * min(4, len(_NAME.findall(sentence)))
    score += 0.15 * min(6, len(spoken.topics.intersection(_terms(sentence))))
    score -= 1.5 * is_question(sentence) + 1.0 * is_talk(sentence)
    return score


def _without_echoes(lines: Sequence[Line], spoken: Spoken, room: int) -> Iterator[Line]:
    """Score sentences higher for each word that no better one has, the more the rarer it is.

    So a summary covers what was spoken of, instead of saying the same thing in five ways. The
    order is that of "maximal marginal relevance" (Carbonell and Goldstein, 1998).
    """
    most = WORD_WEIGHT if spoken.is_chat else WORD_WEIGHT_AT_WORK
    weight = {
        term: most * math.log(spoken.count / times) for term, times in spoken.messages.items()
    }
    terms = [set(_terms(line.text)) if line.section == "statements" else set() for line in lines]
    told: set[str] = set()

    def gain(at: int) -> float:
        fresh = terms[at] - told
        is_echo = len(fresh) < ECHO * len(terms[at])
        return lines[at].score + sum(weight.get(term, 0) for term in fresh) - is_echo

    waiting = [(-gain(at), at) for at in range(len(lines))]
    heapify(waiting)
    # Beyond what there is room for, the order does not matter any more.
    for _ in range(room // SHORTEST_LINE):
        if not waiting:
            break
        while True:
            at = waiting[0][1]
            # What others have told since makes a sentence worth less, and never more.
            heapreplace(waiting, (-gain(at), at))
            if waiting[0][1] == at:
                break
        score, at = heappop(waiting)
        told |= terms[at]
        yield replace(lines[at], score=-score)
    for score, at in waiting:
        yield replace(lines[at], score=-score)


def _call_lines(messages: Sequence[Message], errors: Errors) -> Iterator[Line]:
    """Tool calls as "name(arguments) -> outcome"; the same call again counts, and is told once."""
    results = {id(answered.call): answered.result for answered in answered_calls(messages)}
    last: dict[str, tuple[int, ToolCallPart]] = {}
    times: Counter[str] = Counter()
    for index, message in enumerate(messages):
        for call in message.parts:
            if not isinstance(call, ToolCallPart):
                continue
            if call.server_executed:
                results |= _provider_result(call, message)
            shown = f"{call.name}({_arguments(call)})"
            last[shown] = (index, call)
            times[shown] += 1
    for shown, (index, call) in last.items():
        outcome, failed = _outcome(results.get(id(call)), errors)
        often = f" ({times[shown]}x)" if times[shown] > 1 else ""
        score = _recency(index, messages) + 0.6 * failed + 0.4 * bool(_CHANGES.search(shown))
        yield Line("calls", f"{shown}{often} -> {outcome}", score + 0.1 * times[shown], index)


def _provider_result(call: ToolCallPart, message: Message) -> dict[int, ToolResultPart]:
    """The result of a call that the provider executed, which stands in the same message."""
    return {
        id(call): part
        for part in message.parts
        if isinstance(part, ToolResultPart) and part.tool_call_id == call.tool_call_id
    }


def _arguments(call: ToolCallPart) -> str:
    if len(call.arguments) == 1:
        return shorten(_plain(next(iter(call.arguments.values()))), 40)
    # The first words of an argument tell what it is; a path has to be whole.
    return ", ".join(
        f"{key}={shorten(_plain(v), 40 if _PATH_ARGUMENT.search(key) else 15)}"
        for key, v in sorted(call.arguments.items(), key=lambda item: len(_plain(item[1])))
    )


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _outcome(result: ToolResultPart | None, errors: Errors) -> tuple[str, bool]:
    if result is None:
        return "no result", False
    if result.exception:
        return shorten(result.exception, 30), True
    found = errors[id(result)]
    if found:
        return shorten(found[-1], 30), True
    lines = [line for line in result.output.splitlines() if line.strip()]
    if not lines:
        return "no output", False
    more = f" ({len(lines):,} lines)" if len(lines) > 3 else ""
    return shorten(lines[0], 20) + more, False


def _error_lines(messages: Sequence[Message], errors: Errors) -> Iterator[Line]:
    last: dict[str, tuple[int, str]] = {}
    times: Counter[str] = Counter()
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                for line in [part.exception] if part.exception else errors[id(part)]:
                    # The same error with another address or line number is the same error.
                    kind = re.sub(r"\d+", "0", line)
                    last[kind] = (index, _MARK.sub("", line))
                    times[kind] += 1
    for kind, (index, line) in last.items():
        score = _recency(index, messages) + math.log(times[kind])
        yield Line("errors", shorten(line, 50), score, index)


def _earlier_lines(head: Head) -> Iterator[Line]:
    """What the previous summary says in its own words; its quotes are found again anyway.

    Where the originals are at hand, the sections that this summarizer wrote itself were taken
    from them and are taken anew. Only what it had carried over is carried on.
    """
    if not head.previous:
        return
    said = words(head.language)
    taken_anew = {said["rules"]}
    if len(head.originals) > len(head.messages):
        taken_anew |= {said[section] for section in (*_SHARES, "values") if section != "earlier"}
    originals = _everything(head.originals)
    lines = [
        line
        for heading, section in sections_of(head.previous)
        for line in section
        if heading not in taken_anew
    ]
    for place, line in enumerate(dict.fromkeys(lines)):
        pieces = [p.strip() for p in _PIECES.split(line) if len(p.strip()) >= 6]
        is_quoted = bool(pieces) and all(piece in originals for piece in pieces)
        if not is_quoted:
            score = 1 + 0.3 * len(exact_values(line))
            yield Line("earlier", line, score, place, is_far=True)


def _everything(messages: Sequence[Message]) -> str:
    said = []
    for message in messages:
        said.append(text_of(message))
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                said.extend(f"{part.name} {key} {_plain(v)}" for key, v in part.arguments.items())
            elif isinstance(part, ToolResultPart):
                said.append(part.output)
    return " ".join(" ".join(said).split())


def _recency(index: int, messages: Sequence[Message]) -> float:
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
