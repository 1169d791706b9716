"""What people said, as lines for a summary: what was asked, decided and told."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

from llm.parts import Message

from ..conversation import is_request, text_of
from ..estimate import estimate
from ..facts import exact_values
from ..transcript import FRAGMENT_NOTE
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
from .line import Line, recency, shorten

PARAGRAPH, SENTENCE = 1e-4, 1e-7
"How far apart the lines of a message and their sentences are in the conversation."
SHARE_OF_REQUESTS = 0.24
"What of the prose they take, so that each of many is told in few words."
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

_TERM = re.compile(r"[^\W\d_]{4,}|[\u30a1-\u30ff]{3,}|[\u4e00-\u9fff]{2}|[\uac00-\ud7af]{2}")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}|\d+|[「《“][^」》”]{2,20}[」》”]")
# When it was said, in front of a message, as keepers of diaries and of chats write it.
_DATED = re.compile(r"\s*\[[^\]\n]{0,40}\d{4}[^\]\n]{0,40}\]")
CLOSED = ("。", "！", "？", "；", "」", "』", "”", "）")
_DIGITS = re.compile(r"\d+")
_LETTERS = re.compile(r"\w+")


def said_lines(messages: Sequence[Message], open_mark: str, room: int) -> Iterator[Line]:
    """What user and assistant said, for `room` tokens: the requests, and what answers tell."""
    spoken = spoken_words(messages)
    known = Corrections(messages)
    asked = int(SHARE_OF_REQUESTS * room)
    yield from _request_lines(messages, spoken, known, open_mark, asked)
    statements = list(_statement_lines(messages, spoken, known))
    yield from _without_echoes(statements, spoken, room)


def _request_lines(
    messages: Sequence[Message],
    spoken: Spoken,
    known: Corrections,
    open_mark: str,
    room: int,
) -> Iterator[Line]:
    """What the user asked, quoted; the first request is the goal, the last ones are the present."""
    asked = [index for index in range(len(messages)) if is_request(messages, index)]
    tokens = min(60, max(24, room // (len(asked) or 1)))
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
        score = _salience(text.rstrip("?？"), "user", spoken) + recency(index, messages)
        score += 5 * (not answered) + 0.5 * is_question(text)
        score += 4 * is_first
        is_first = False
        yield Line("requests", f'"{text}"{mark}', score, index)


def _quote(text: str, tokens: int, spoken: Spoken) -> str:
    """What a message says, in so many tokens: as it is, or in those sentences that say most."""
    dated = _DATED.match(text)
    if not dated:
        return _quoted(text, tokens, spoken)
    return f"{dated[0].strip()} {_quoted(text[dated.end() :], tokens, spoken)}"


def _quoted(text: str, tokens: int, spoken: Spoken) -> str:
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
        between = "" if quote.endswith(CLOSED) else " "
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
                score = salience + 0.5 * recency(index, messages)
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
