"""Questions about facts of the head, each a sentence that was said, with a gap.

They are drawn by code, and so are the answers judged. A model only looks up what is missing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llm.parts import Message

from .check import harmless, without_thinking
from .conversation import is_request, text_of
from .errors import CheckFailed, SummarizerError
from .estimate import estimate
from .facts import exact_values, rank_facts
from .language import words
from .pins import with_pins, without_pins
from .redaction import redacted_message, secrets_in, texts_of
from .rules import standing_rules, with_lines
from .summarizers import examiner_name
from .summarizers.call import ContextOverflow, ask
from .summarizers.cues import is_question, is_talk, outcomes, sentences
from .summarizers.model import ModelSummarizer, model_summarizer
from .summarizers.prompts import check_prompts, fill
from .summary import Head, Summarizer, Usage
from .tokens import count_text
from .transcript import FRAGMENT_NOTE, Piece, new_boundary, pieces_of, transcript
from .values import group_of

LEAST_QUESTIONS, MOST_QUESTIONS = 3, 8
GAP = "____"

LONGEST_SENTENCE = 100
"Tokens. What is quoted in a repair costs in every request."
SHORTEST_CLUE = 5
"Tokens around a gap. Fewer do not tell what belongs there."
LONGEST_ANSWER = 120
"Characters besides the value. Who copies all that there is has not answered."
TOKENS_OF_ANSWER = 30
CANDIDATES = 100
"How many values are looked at: the most used ones."

_WORD = re.compile(r"[^\W\d_]{4,}")
_CHINESE_OR_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
# Without spaces, words end where one of the characters stands that only join them.
_TERM = re.compile(
    "(?:(?![的了是在和与把被请我你他她它们这那吗呢吧为对从到给让就也都要会能不])"
    "[\u30a1-\u30ff\u4e00-\u9fff]){2,}"
)
LONGEST_TERM = 6
"Characters between such. More are rather a clause."
# A part of a number, a date or a path is no value.
_GLUED = re.compile(r"[/\w-]", re.ASCII)
_MARKUP = re.compile("[`*\"'“”‘’«»„「」『』]")
_ANSWER_LINE = re.compile(
    r"^[\s*_>#-]*(?:(?:question|sentence|answer|gap)\s*)?"
    r"\(?([1-9]\d?)\s*[.:)\]：、][*_]*[ \t]*(.*)$",
    re.IGNORECASE,
)
# Nobody said that.
_NOTE = re.compile(rf"\([\d,]+ {FRAGMENT_NOTE}: .*?…\)")
_FENCED = re.compile(r"\A\s*```\w*\s*\n(.*?)\n?```\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Sentence:
    """Something that was said, on one line."""

    text: str
    message: int
    "Number of its message in the conversation, from 1."
    role: str


@dataclass(frozen=True)
class Question:
    """A sentence of the conversation, and the value in it that is to be looked up."""

    kind: str
    "goal, rule, decision, name, number or statement."
    sentence: Sentence
    expected: str

    @cached_property
    def text(self) -> str:
        """The sentence with a gap."""
        return self.sentence.text.replace(self.expected, GAP, 1)

    @property
    def heading(self) -> str:
        """Key of the heading under which a summary tells such a sentence."""
        if self.kind == "rule":
            return "rules"
        # What the user asked for has been answered, and this heading says so.
        if self.sentence.role == "user":
            return "requests"
        return "decisions" if self.kind == "decision" else "values"


def get_examiner(name: str | None, summarizer: Summarizer) -> ModelSummarizer:
    """The model that answers: the named one, else the one that summarizes.

    Raises `SummarizerError` for an unknown model, and where no model is named and none summarizes.
    """
    chosen = examiner_name(name, summarizer.name)
    is_model = isinstance(summarizer, ModelSummarizer)
    other = None if is_model and chosen == summarizer.name else model_summarizer(chosen)
    # A key and options are meant for the model that they were given for, by whatever alias.
    if isinstance(summarizer, ModelSummarizer) and (not other or other.name == summarizer.name):
        return summarizer
    assert other is not None
    return other


def draw_questions(head: Head) -> list[Question]:
    """Three to eight questions about a head, fewer only where it says less; always the same ones.

    About the goal, a rule, a decision, a name (path, id) and a number, and then about the values
    that were used most, from all over the head. None asks for a secret, and none gives away what
    another one asks for.
    """
    said = list(_sentences(head.originals))
    paper = _Paper(said, head.secrets)
    ranked = rank_facts(head.originals)
    scores = {fact.value: fact.score for fact in ranked}
    places: dict[str, Sentence] = {}
    for sentence in said:
        for value, _ in exact_values(sentence.text):
            places[value] = sentence  # the latest word on it
    names, numbers = (
        [
            (places[fact.value], fact.value)
            for fact in ranked
            if fact.value in places and (group_of(fact) == "number") == is_number
        ][:CANDIDATES]
        for is_number in (False, True)
    )

    def clozes(chosen: Iterable[Sentence]) -> Iterator[tuple[Sentence, str]]:
        return ((s, value) for s in chosen for value in _values(s.text, scores))

    paper.add_first("goal", clozes(_first_request(said)))
    paper.add_first("rule", clozes(_rules(head.originals)))
    paper.add_first("decision", clozes(_decisions(said)))
    paper.add_first("name", iter(names))
    paper.add_first("number", iter(numbers))
    paper.spread("name", names, MOST_QUESTIONS - 1)
    paper.spread("number", numbers, MOST_QUESTIONS)
    statements = [s for s in reversed(said) if not (is_talk(s.text) or is_question(s.text))]
    for sentence in statements:
        if len(paper.questions) >= LEAST_QUESTIONS:
            break
        paper.add_first("statement", clozes([sentence]))
    return sorted(paper.questions, key=lambda question: question.sentence.message)


class _Paper:
    """The questions that are chosen so far."""

    def __init__(self, said: Sequence[Sentence], secrets: Iterable[str]) -> None:
        self.said = [sentence.text for sentence in said]
        self.secrets = list(secrets)
        self.questions: list[Question] = []
        self.clear: dict[tuple[str, str, str], bool] = {}
        "What was found out about a question, which takes a look at all that was said."

    def add_first(self, kind: str, candidates: Iterator[tuple[Sentence, str]]) -> None:
        """Take the first candidate that makes a fair question."""
        for sentence, value in candidates:
            question = Question(kind, sentence, value)
            if self._is_fair(question):
                self.questions.append(question)
                return

    def spread(self, kind: str, candidates: Sequence[tuple[Sentence, str]], most: int) -> None:
        """Take candidates, each as far as possible from what is asked already, up to `most`."""
        left = [Question(kind, sentence, value) for sentence, value in candidates]
        while len(self.questions) < most:
            left = [question for question in left if self._is_fair(question)]
            if not left:
                return
            self.questions.append(max(left, key=self._distance))

    def _distance(self, question: Question) -> int:
        places = (asked.sentence.message for asked in self.questions)
        return min((abs(question.sentence.message - place) for place in places), default=0)

    def _is_fair(self, question: Question) -> bool:
        quote, clue = question.sentence.text, question.text
        for asked in self.questions:
            if asked.sentence == question.sentence:
                return False
            if _holds(clue, asked.expected) or _holds(asked.text, question.expected):
                return False
            if asked.expected in question.expected or question.expected in asked.expected:
                return False
        key = (question.kind, quote, question.expected)
        if key not in self.clear:
            self.clear[key] = self._is_clear(question)
        return self.clear[key]

    def _is_clear(self, question: Question) -> bool:
        """Whether there is one thing only that belongs into the gap, and no secret."""
        quote, clue = question.sentence.text, question.text
        if quote.count(question.expected) != 1 or estimate(clue) < SHORTEST_CLUE:
            return False
        # The word that tells of a decision is not what was decided.
        if question.kind == "decision" and outcomes(clue) < outcomes(quote):
            return False
        if harmless(quote) != quote or any(secret in quote for secret in self.secrets):
            return False
        before, after = clue.split(GAP, 1)
        if _GLUED.match(before[-1:]) or _GLUED.match(after[:1]):
            return False
        fitting = {
            said
            for said in self.said
            if said.startswith(before) and said.endswith(after) and len(said) > len(before + after)
        }
        return fitting == {quote}


def _sentences(messages: Sequence[Message]) -> Iterator[Sentence]:
    for index, message in enumerate(messages):
        if message.role == "assistant" or is_request(messages, index):
            for text in sentences(_NOTE.sub("\n", text_of(message))):
                # A gap of somebody else's can't be told from ours.
                if GAP not in text and estimate(text) <= LONGEST_SENTENCE:
                    yield Sentence(text, index + 1, message.role)


def _first_request(said: Sequence[Sentence]) -> list[Sentence]:
    first = next((s.message for s in said if s.role == "user"), None)
    return [s for s in said if s.message == first]


def _rules(messages: Sequence[Message]) -> list[Sentence]:
    rules = [rule for rule in standing_rules(messages) if rule.is_said]
    rules.sort(key=lambda rule: (rule.is_firm, rule.message), reverse=True)
    return [Sentence(rule.text, rule.message, "user") for rule in rules]


def _decisions(said: Sequence[Sentence]) -> list[Sentence]:
    found = [
        (outcomes(s.text), s.message, s)
        for s in said
        if not (is_talk(s.text) or is_question(s.text)) and outcomes(s.text)
    ]
    return [s for _, _, s in sorted(found, key=lambda place: place[:2], reverse=True)]


def _values(sentence: str, scores: dict[str, float]) -> list[str]:
    """What may be asked for in a sentence: its exact values, the most used first, else a word."""
    exact = sorted({value for value, _ in exact_values(sentence)})
    terms = _WORD.findall(sentence)
    if _CHINESE_OR_JAPANESE.search(sentence):
        terms = [term for term in _TERM.findall(sentence) if len(term) <= LONGEST_TERM]
    longest = sorted(dict.fromkeys(terms), key=len, reverse=True)
    return [*sorted(exact, key=lambda value: -scores.get(value, 0)), *longest]


def with_facts(summary: str, questions: Sequence[Question], head: Head) -> str:
    """The summary with the sentences of some questions, word for word and in front of the pins."""
    said = words(head.language)
    summary = without_pins(summary)
    for question in questions:
        line = f'- "{question.sentence.text}" [{question.sentence.message}]'
        summary = with_lines(summary, f"## {said[question.heading]}", [line])
    return with_pins(summary, head)


def missing_in(messages: Sequence[Message], questions: Sequence[Question]) -> list[Question]:
    """The questions whose sentences are in none of the messages word for word."""
    texts = [_plain(text) for message in messages for text in texts_of(message)]
    return [
        question
        for question in questions
        if not any(_plain(question.sentence.text) in text for text in texts)
    ]


def check_window(
    questions: Sequence[Question], messages: Sequence[Message], examiner: ModelSummarizer
) -> None:
    """Raises `CheckFailed` where the messages and questions do not fit the examiner's window."""
    _check_window(*_prompts(questions, messages), len(questions), examiner)


def _check_window(system: str, prompt: str, count: int, examiner: ModelSummarizer) -> None:
    size = count_text(system) + count_text(prompt) + TOKENS_OF_ANSWER * count
    if examiner.window is not None and size > examiner.window:
        raise _too_large(examiner)


def wrong_answers(
    questions: Sequence[Question],
    messages: Sequence[Message],
    examiner: ModelSummarizer,
    *,
    secrets: frozenset[str] | None,
) -> tuple[list[Question], Usage]:
    """The questions that a model can't answer from some messages alone, and what that used.

    `secrets` are those that the examiner may not see, besides what looks like one; None if it may
    see what the tail and the system prompt say. Raises `CheckFailed` where the model fails or the
    messages do not fit its window.
    """
    shown = messages
    if secrets is not None:
        known = secrets | secrets_in(text for m in messages for text in texts_of(m))
        shown = [redacted_message(message, known) for message in messages]
    system, prompt = _prompts(questions, shown)
    _check_window(system, prompt, len(questions), examiner)
    try:
        answer = ask(
            examiner.model,
            system,
            prompt,
            options=examiner.options,
            key=examiner.key,
            show=lambda text: None,
        )
    except ContextOverflow as ex:
        raise _too_large(examiner) from ex
    except SummarizerError as ex:
        told = str(ex).rstrip(". ")
        raise CheckFailed(f"The check was not made: {examiner.name} {told}") from ex
    answers = read_answers(answer.text, len(questions))
    wrong = [q for q, a in zip(questions, answers, strict=True) if not is_right(q, a)]
    return wrong, answer.usage


def _too_large(examiner: ModelSummarizer) -> CheckFailed:
    window = f" of {examiner.window:,} tokens" if examiner.window else ""
    return CheckFailed(
        f"The check was not made: the new conversation does not fit the context window{window} of "
        f"{examiner.name}. Name another model with --check, or keep less with --keep"
    )


def _prompts(questions: Sequence[Question], messages: Sequence[Message]) -> tuple[str, str]:
    pieces = pieces_of(messages)
    asked = [Piece(f"sentence {at}", q.text) for at, q in enumerate(questions, 1)]
    boundary = new_boundary(*(text for p in (*pieces, *asked) for text in (p.label, p.text)))
    prompts = check_prompts()
    values = {
        "boundary": boundary,
        "gap": GAP,
        "transcript": transcript(pieces, boundary),
        "questions": transcript(asked, boundary),
    }
    return fill(prompts.system, values), fill(prompts.prompt, values)


def read_answers(text: str, count: int) -> list[str]:
    """So many answers, "" for each that is not there: numbered lines, or JSON."""
    text = without_thinking(text).strip()
    fenced = _FENCED.match(text)
    text = fenced[1] if fenced else text
    found = _json_answers(text)
    if found is None:
        found = {}
        latest = 0
        for line in text.splitlines():
            match = _ANSWER_LINE.match(line)
            # An answer may go on with a number: those of the questions only rise.
            if match and latest < int(match[1]) <= count:
                latest = int(match[1])
                found[latest] = match[2]
            elif latest:
                found[latest] += f"\n{line}"
        if not found and count == 1:
            found = {1: text}
    return [found.get(number, "").strip() for number in range(1, count + 1)]


def _json_answers(text: str) -> dict[int, str] | None:
    try:
        data: Any = json.loads(text)
    except ValueError:
        return None
    if isinstance(data, dict) and len(data) == 1 and isinstance(next(iter(data.values())), list):
        data = next(iter(data.values()))
    if isinstance(data, list):
        data = {str(number): item for number, item in enumerate(data, 1)}
    if not isinstance(data, dict):
        return None
    answers = {}
    for key, item in data.items():
        number = re.search(r"\d+", str(key))
        if number:
            told = item.get("answer", "") if isinstance(item, dict) else item
            answers[int(number[0])] = str(told)
    return answers


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer has the value, whatever stands around it, and is no copy of it all."""
    is_short = len(answer) <= len(question.expected) + LONGEST_ANSWER
    return is_short and _holds(answer, question.expected)


def _holds(text: str, value: str) -> bool:
    """Whether a text has a value as a whole: 15 is not in 2015, nor 1.5 in 1.55."""
    text, value = _plain(text), _plain(value)
    if not value:
        return False
    before = r"(?<![a-z0-9_])(?<!\d[.,:])" if _is_latin(value[0]) else ""
    after = r"(?![a-z0-9_]|[.,:]\d)" if _is_latin(value[-1]) else ""
    return bool(re.search(f"{before}{re.escape(value)}{after}", text))


def _is_latin(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _plain(text: str) -> str:
    text = _MARKUP.sub("", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(re.sub(r"(?<=\d),(?=\d{3})", "", text).split())
