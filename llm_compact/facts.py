"""Exact values: the paths, URLs, ids, numbers and names that prose loses, found and ranked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart

# What counts is who used a value: what people and models say they will say again; most of what a
# tool prints nobody ever mentions.
_WEIGHTS = {"user": 3.0, "assistant": 2.0, "call": 2.0, "result": 0.25}
# Of a very long text only the ends are read: the middle of a log is never what is quoted later.
_READ_CHARACTERS = 60_000

_PATTERN = re.compile(
    r"""
    # Inside a word only amounts, dates and URLs begin. Said once, it need not be found out by each
    # of the alternatives at each letter.
    (?:(?<!\w)|(?=[\d$€£¥h]))
    (?:
    (?P<url>https?://[^\s<>"'`)\]}，。、；]+)
  | (?P<email>(?<![\w.+-])[\w.+-]{1,64}@[\w-]+\.[\w.-]+\w)
  | (?P<uuid>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)
  | (?P<pair>(?<![^\s"'`(\[])[A-Za-z]{2,40}/[A-Za-z]{2,40}(?![\w/-]|\.\w))
  | (?P<path>(?<![\w/.:~<-])(?:
        (?:~/|(?:\.{1,2}/)+|/[\w@.+-]+/)[\w@.+-]+(?:/[\w@.+-]+)*
      | \.?[A-Za-z_@][\w@.+-]+/(?:[\w@.+-]+/)+[\w@.+-]*\w
      | \.?[A-Za-z_@][\w@.+-]+/[\w@+-]*\.\w[\w.]*)
      | (?<![\w/.<-])/(?:etc|tmp|usr|var|opt|home|root|srv|mnt|data|dev|proc|app)\b
      | (?<![\w/.-])[A-Za-z]:\\[\w\\.+-]+
      | (?<![\w/.-])[\w-]+(?:\.[\w-]+)*\.(?:py|js|jsx|ts|tsx|go|rs|java|kt|rb|php|c|h|cc|cpp|hpp
        |cs|swift|sh|md|rst|txt|json|jsonl|yaml|yml|toml|ini|cfg|conf|sql|db|csv|tsv|xml|html|css
        |scss|lock|log|env|pdf|png|jpg|svg|ipynb|proto|tf|gradle|pony|vue|zip|gz)\b)
  | (?P<date>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?\b|\b\d{1,2}:\d\d(?::\d\d)?\s?(?:[ap]m\b)?
      |\d{4}年\d{1,2}月(?:\d{1,2}日)?|\d{1,2}月\d{1,2}日)
  | (?P<version>\bv?\d+\.\d+(?:\.\d+)+(?:[-+.]?[a-z]+\d*)?\b)
  | (?P<flag>(?<![\w-])--[a-z][\w-]+(?:=[^\s"'`,;)]+)?)
  | (?P<ticket>\b[A-Z][A-Z0-9]+-\d+\b|(?<!\w)\#\d+\b)
  | (?P<hash>\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)
  | (?P<code>\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{4,16}\b)
  | (?P<number>[$€£¥]\s?\d[\d,]*(?:\.\d+)?[kKM]?
      |\b\d[\d,]*(?:\.\d+)?\s?(?:%|ms|s|sec|min|h|hours?|days?|KB|MB|GB|TB|kB|px|tokens?|USD|EUR|km|m|kg|°C)(?!\w)
      |\d[\d,]*(?:\.\d+)?\s?(?:元|块|円|원|个|人|岁|歳|分钟|小时|公里|米|平方米|分|点|号|번|개|명))
  | (?P<bare>\b\d[\d,]{3,}(?:\.\d+)?\b|\b\d{3,}\b|\b\d+\.\d+\b)
  | (?P<name>\b[A-Za-z][\w-]*(?:\.[A-Za-z_]\w+)+(?:\(\))?|\b[a-z]\w*_\w+(?:\(\))?
      |\b[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+\b|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b
      |\b(?:[A-Z][a-z0-9]+){2,}\b)
    )
    """,
    re.VERBOSE | re.ASCII,
)
_ERROR = re.compile(
    r"""^.*(?:
        \b[A-Z]\w*(?:Error|Exception|Warning)\b\s*[:(] | \b(?:error|fatal|panic|failed)\b\s*:
      | (?:^|\s)E\s{3,}\w | \bFAILED\b
      | \b(?:exit\ code|status\ code|exit\ status)[:\ ]+[1-9]\d*\b
      | \b(?:No\ such\ file|command\ not\ found|Permission\ denied|cannot\ find|not\ found)\b
      | 错误[:：] | 失败[:：] | エラー[:：] | 오류[:：]
    ).*$""",
    re.VERBOSE | re.MULTILINE,
)
# A line of a file that was read or searched, with its number: it may speak of errors, it is none.
_NO_ERROR = re.compile(
    r"\b(?:0|no) (?:errors?|failed|failures)\b|\b(?:errors?|failed):? 0\b", re.IGNORECASE
)
_LISTED_CODE = re.compile(r"(?:[\w./-]+[:-])?\d+(?:→|[:|-]\s|\t)|\s*(?://|#|\*|/\*)")
# A number without a unit says little where it stands alone, and "and/or" is no path.
_DOUBTFUL = {"bare": 0.5, "pair": 0.3}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{3,}|[\u4e00-\u9fff]")
_TRAILING = ".,:;!?"


@dataclass(frozen=True)
class Fact:
    """An exact value and how much it was used."""

    value: str
    kind: str
    score: float


def rank_facts(messages: Sequence[Message]) -> list[Fact]:
    """The exact values of some messages, those that were used most, and last, in front."""
    uses: dict[str, list[float]] = {}
    kinds: dict[str, str] = {}
    for index, message in enumerate(messages):
        # Twice as much for the last message as for the first.
        recency = 1 + (index + 1) / len(messages)
        for source, text in _texts(message):
            weight = _WEIGHTS[source] * recency
            for value, kind in dict.fromkeys(exact_values(text)):
                kinds.setdefault(value, kind)
                uses.setdefault(value, []).append(weight * _DOUBTFUL.get(kind, 1.0))
    # The weightiest use says that a value matters; each further one says it again, more quietly.
    facts = [
        Fact(value, kinds[value], score=max(weights) + math.log(1 + sum(weights)))
        for value, weights in uses.items()
    ]
    return sorted(facts, key=lambda fact: -fact.score)


def exact_values(text: str) -> Iterator[tuple[str, str]]:
    """(value, kind) for each exact value in a text, in order, repetitions included."""
    for match in _PATTERN.finditer(_ends(text)):
        kind = match.lastgroup or "name"
        value = match[kind].rstrip(_TRAILING).strip()
        if len(value) > 1 and len(value) <= 200:
            yield value, kind


def error_lines(text: str) -> list[str]:
    """The lines of a tool's output that tell what went wrong."""
    lines = (match[0].strip() for match in _ERROR.finditer(_ends(text)))
    return [
        " ".join(line.split())
        for line in lines
        if _WORD.search(line) and not (_LISTED_CODE.match(line) or _NO_ERROR.search(line))
    ]


def _ends(text: str) -> str:
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    if len(text) <= _READ_CHARACTERS:
        return text
    half = _READ_CHARACTERS // 2
    return f"{text[:half]}\n{text[-half:]}"


def _texts(message: Message) -> Iterator[tuple[str, str]]:
    for part in message.parts:
        if isinstance(part, TextPart):
            yield ("user" if message.role == "user" else "assistant"), part.text
        elif isinstance(part, ToolCallPart):
            for argument in part.arguments.values():
                plain = isinstance(argument, str)
                yield "call", argument if plain else json.dumps(argument, ensure_ascii=False)
        elif isinstance(part, ToolResultPart):
            yield "result", part.output
