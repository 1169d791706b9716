"""The language of a conversation, and the fixed words of a summary in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import yaml
from llm.parts import Message

from .conversation import text_of

# Some thousand characters tell a language. Reading a novel for it would not tell it better.
SAMPLE = 20_000
BEGINNING = 400
"How much of a message is read: what somebody pastes comes after what they say."

LEAST_LETTERS = 60
"Fewer do not tell that a text is in another language than it should be."

_SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af]"),
    "zh": re.compile("[\u4e00-\u9fff]"),
    "ru": re.compile("[\u0400-\u04ff]"),
}
# How much of a text has to be in a script. Code and logs are Latin whatever their reader speaks,
# and hardly anybody quotes kana or Hangul who does not write them.
_SHARES = {"ja": 0.04, "ko": 0.04, "zh": 0.1, "ru": 0.2}
# Paths, names and commands are Latin in a summary of any language, but they are not all of it.
_LEAST_SHARE = 0.05
_LATIN = re.compile("[A-Za-zÀ-ɏ]")
_WORD = re.compile(r"[^\W\d_]+")
# The commonest words of each language that the others here do not have.
_COMMON = {
    "en": "the and is of to that it for with you are this what how was not have",
    "de": "der die und das ist nicht ich ein eine mit auf für wie wir auch sich bitte",
    "fr": "le les et est une pas pour dans que qui je nous vous avec sur ce des du",
    "es": "el los las y es una por para con que como pero más está qué del se",
    "pt": "o os as e é uma não para com que como mas mais está você do da em",
    "it": "il gli e è una non per con che come ma più sono della di questo",
    "tr": "ve bir bu için ile değil ne mi var gibi ama daha olarak çok şey",
}
_COMMON_WORDS = {code: frozenset(words.split()) for code, words in _COMMON.items()}


def language_of(messages: Iterable[Message]) -> str:
    """Code of the language that the user writes, `en` where nothing tells.

    Each message has one vote: an error message in English that somebody pastes does not outvote
    what they say. The assistant is asked where the user's words tell nothing; tool output never
    is: a Chinese conversation about English logs is Chinese.
    """
    votes: dict[str, Counter[str]] = {"user": Counter(), "assistant": Counter()}
    room = SAMPLE
    for message in messages:
        if message.role in votes and room > 0:
            text = text_of(message)[:BEGINNING]
            room -= len(text)
            language = _language_of_text(text)
            if language:
                votes[message.role][language] += 1
    for said in votes.values():
        if said:
            return said.most_common(1)[0][0]
    return "en"


def _language_of_text(text: str) -> str | None:
    script = None if text.isascii() else _language_of_script(text)
    if script:
        return script
    spoken = _WORD.findall(text.lower())
    scores = _scores(spoken)
    winner = max(scores, key=lambda code: scores[code])
    # One word is chance: "de" and "et" stand in many languages that are none of these.
    is_clear = scores[winner] >= max(2, 0.12 * len(spoken))
    return winner if is_clear else None


def _language_of_script(text: str) -> str | None:
    # A letter of these scripts says about as much as two and a half Latin ones.
    weights = {code: 2.5 * len(pattern.findall(text)) for code, pattern in _SCRIPTS.items()}
    weights["ja"] += weights["zh"] if weights["ja"] > 0.1 * weights["zh"] else 0
    best = max(weights, key=lambda code: weights[code])
    is_clear = weights[best] > _SHARES[best] * (len(_LATIN.findall(text)) + weights[best])
    return best if is_clear else None


def _scores(spoken: Sequence[str]) -> dict[str, int]:
    return {code: sum(map(common.__contains__, spoken)) for code, common in _COMMON_WORDS.items()}


def is_written_in(language: str, text: str) -> bool:
    """Whether a text may be in a language. What is short, or hardly prose, may be in any.

    A name, a quote or a term of another language says nothing: only what is clearly in another
    one is not in this.
    """
    latin = len(_LATIN.findall(text))
    found = {code: 2.5 * len(pattern.findall(text)) for code, pattern in _SCRIPTS.items()}
    kana, han = found["ja"], found["zh"]
    found["ja"] += han if kana > 0.1 * han else 0
    found["zh"] = 0 if kana > 0.1 * han else han
    total = latin + sum(pattern for pattern in found.values())
    if total < LEAST_LETTERS:
        return True
    if language in _SCRIPTS:
        others = max(found[code] for code in _SCRIPTS if code != language)
        return found[language] >= max(others, _LEAST_SHARE * total)
    if max(found.values()) > 0.5 * total:
        return False
    spoken = _WORD.findall(text.lower())
    scores = _scores(spoken)
    winner = max(scores, key=lambda code: scores[code])
    is_other = scores[winner] >= max(4, 0.12 * len(spoken))
    return not is_other or 2 * scores.get(language, 0) >= scores[winner]


@cache
def words(language: str) -> Mapping[str, str]:
    """The fixed words in a language, English ones where we do not speak it."""
    return all_words().get(language) or all_words()["en"]


def languages() -> Collection[str]:
    """Codes of the languages that we speak."""
    return all_words().keys()


@cache
def all_words() -> dict[str, dict[str, str]]:
    """The fixed words of every language, by its code."""
    text = files("llm_compact").joinpath("languages.yaml").read_text("utf-8")
    loaded: dict[str, dict[str, str]] = yaml.safe_load(text)
    return loaded


def lower_in_place(text: str) -> str:
    """In lower case, each character in its place: some have two in lower case."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
