"""Exact values: the paths, URLs, ids, numbers and names that prose loses, found and ranked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart

# What counts is who used a value: what people and models say they will say again; most of what a
# tool prints nobody ever mentions. An argument is a value that a call has as a whole.
_WEIGHTS = {
    "user": 3.0,
    "assistant": 2.0,
    "argument": 3.0,
    "command": 2.0,
    "call": 2.0,
    "result": 0.5,
}
# One value among hundreds says less than one of a few: from so many on, each counts less.
_MANY = 20
_HALF_LIFE = 0.5
"Of the messages. A value is half as near for each of these that it was not used in."
_LEAST_SAID = 0.4
"How near at least is what people and models said themselves: what tools print gets out of date."
_FRESH = 0.2
"Of the messages. An error of longer ago was fixed, or is told in prose."
# Of a very long text only the ends are read: the middle of a log is never what is quoted later.
_READ_CHARACTERS = 200_000
LONGEST = 200
"Characters. What is longer is data, and no value that anybody says again."

# How much of a use these kinds count. A number without a unit says little where it stands alone,
# "and/or" is no path, times and durations are those of a log, and a command is made of values
# that are listed anyway: these have to be used again and again.
_TRUST = {
    "amount": 0.7,
    "bare": 0.4,
    "command": 0.1,
    "dotted": 0.8,
    "error": 3.0,
    "kebab": 0.3,
    "pair": 0.3,
    "range": 0.4,
    "small": 0.2,
    "time": 0.3,
    "uuid": 0.6,
    "word": 0.3,
}
# "pre-existing" and "and/or" are written by people, and in the documents that tools print.
_PROSE = frozenset({"user", "assistant", "result"})
_PROSAIC = frozenset({"kebab", "pair"})

# A text is cut into candidates in one simple pass, and each different one is looked at once: one
# expression for all kinds costs ten times as much, because it tries them at each letter.
_CANDIDATE = re.compile(r"[\w@#~./:+=-]{2,}", re.ASCII)
_URL = re.compile(r"https?://[^\s<>\"'`)\]}，。、；\\]+")
_LINE_NUMBER = re.compile(r"^[ \t]*\d{1,6}[→\t]", re.MULTILINE)
_WINDOWS_PATH = re.compile(r"(?<![\w/.-])[A-Za-z]:\\[\w\\.+-]+", re.ASCII)
_ESCAPED = re.compile(r"\\[nrt\"]")
_INLINE_CODE = re.compile(r"(?<!`)`([^`\n]{2,100})`(?!`)")
_COMMAND_KEYS = frozenset({"command", "cmd", "script"})
_PLACE_KEY = re.compile(r"(?:.*_)?(?:line|lines|lineno|line_?numbers?|offset|limit|view_range)")
"The arguments that say which lines of a file."
_LONGEST_COMMAND = 120
# "s/old/new/" is no path, and "/old/new" is none of it; "/^these lines/" may stand before it.
_SUBSTITUTION = re.compile(
    r"(?<![\w/.-])(?:/\^[^/\n]{1,60}/)?s([/|#])((?:\\.|(?!\1)[^\\\n])*)\1((?:\\.|(?!\1)[^\\\n])*)\1"
)
_BULLETS = re.compile(r"^(?:[-*•] )+")

# What stands beside a space, or beside letters of other scripts, is no candidate by itself. Each
# begins with a digit, which is found fast; what stands before it is looked at afterwards.
_AMOUNT = re.compile(
    r"[\d$€£¥](?<![\w.:/-].)(?:"
    r"(?<=[$€£¥])\s?\d{1,15}(?:,\d{3}){0,5}(?:\.\d{1,15})?(?:[kKM](?!\w))?"
    r"|(?<=\d)\d{3}-\d\d-\d\d\x20\d\d:\d\d(?::\d\d)?(?!\w)"
    r"|(?<=\d)\d?:\d\d\s?[ap]m\b"
    r"|(?<=\d)\d{0,15}(?:,\d{3}){0,5}(?:\.\d{1,15})?(?:"
    r"\s?(?:%|(?:ms|s|sec|min|h|hours?|days?|KB|MB|GB|TB|kB|px|tokens?|USD|EUR|km|m|kg|°C)(?!\w))"
    r"|\s?(?:元|块|円|원|岁|歳|分钟|小时|公里|米|平方米|分|点|号)"
    # "3개" is a word of prose like "three of them", and "30개" is a figure.
    r"|(?<=\d\d)\s?(?:个|人|개|명|번)"
    r"|年\d{1,2}月(?:\d{1,2}日)?|月\d{1,2}日)"
    r"|(?<=\d)\d{0,2}(?:,\d{3}){1,5}(?:\.\d{1,15})?(?![\w,])"
    r")",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(
    r"(?:\d{4}-\d\d-\d\dT)?\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
)
_VERSION = re.compile(
    r"v\d+(?:\.\d+)+(?:[-+.]?[a-z]+[.\d]*)?|\d+(?:\.\d+){2,}(?:[-+.]?[a-z]+[.\d]*)?"
)
_NUMBER = re.compile(r"\d{3,}|\d+\.\d+")
_FLAG = re.compile(r"--[a-z][\w-]*\w(?:=[^=]+)?", re.ASCII)
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HASH = re.compile(r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}|(?=[A-F]*\d)(?=\d*[A-F])[0-9A-F]{7,64}")
_CODE = re.compile(r"(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{4,16}")
_HEX = re.compile(r"#[0-9a-fA-F]{6}(?:[0-9a-fA-F]{2})?|0x[0-9a-fA-F]{3,}")
"A colour, or an address."
_TICKET = re.compile(r"[A-Z][A-Z0-9]+-\d+|#\d+")
_PHONE = re.compile(r"\+?(?:1-)?\d{2,4}(?:-\d{2,5}){2,3}")
_RANGE = re.compile(r"\d{2,6}-\d{2,6}")
_SLUG = re.compile(r"(?=.*\d{3})(?=.*[A-Za-z])\w+(?:-\w+)+", re.ASCII)
"Words with a number, which only an id has: sess-1234, 2026-01-21-test."
_NAME = re.compile(
    r"[A-Za-z]\w*_\w+|[a-z]+(?:[A-Z][a-z0-9]*)+|(?:[A-Z]+[a-z0-9]+){2,}[A-Z]*"
    r"|[A-Z]+[a-z0-9]+[A-Z]+"
    r"|[A-Za-z]{2,}\d+|_\w*[a-z]\w*",
    re.ASCII,
)
_SHORTEST_NAME = 3
"Characters. The dT of %Y-%m-%dT%H names nothing."
_DOTTED = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_]\w+)+", re.ASCII)
_KEBAB = re.compile(r"[A-Za-z]\w*(?:-\w+)+", re.ASCII)
_FILE = re.compile(
    r"\.?[\w@+-]+(?:\.[\w-]+)*\.(?:py|js|jsx|mjs|ts|tsx|go|rs|java|kt|rb|php|c|h|cc|cpp|hpp|cs|swift|sh"
    r"|md|mdx|rst|txt|json|jsonl|yaml|yml|toml|ini|cfg|conf|sql|db|csv|tsv|xml|html|css|scss|lock"
    r"|log|env|pdf|png|jpg|jpeg|gif|svg|ipynb|proto|tf|gradle|pony|vue|zip|gz|tar|mod|sum|pyi|v|sv"
    r"|bat|ps1|exe|dll|so|plist|pem|properties|tmpl|snap)"
    r"|Makefile|Dockerfile|LICENSE|CODEOWNERS|\.(?:git|docker|npm)ignore|\.env(?:\.\w+)?",
    re.ASCII,
)
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/?[\w@.+-]+)(?:/[\w@.+-]+)*/?", re.ASCII)
_SERVED = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+):\d{2,5}(?:/[\w@.+~-]+)+/?", re.ASCII)
"A URL without its scheme: the path alone would begin with the port."
_DECIMAL = re.compile(r"\d*(?:\.\d+)+")
_ROOTS = re.compile("etc|tmp|usr|var|opt|home|root|srv|mnt|data|dev|proc|app")

_ERROR = re.compile(
    r"""
        \b[A-Z]\w*(?:Error|Exception|Warning)\b\s*[:(] | \b(?:error|fatal|panic|failed)\b\s*:
      | (?:^|\s)E\s{3,}\w | \bFAILED\b
      | \b(?:exit\ code|status\ code|exit\ status)[:\ ]+[1-9]\d*\b
      | \b(?:No\ such\ file|command\ not\ found|Permission\ denied|cannot\ find|not\ found)\b
      | 错误[:：] | 失败[:：] | エラー[:：] | 오류[:：]
    """,
    re.VERBOSE,
)
# One of these is in each line that the expression above finds.
_ERROR_CLUES = (
    "Error", "Exception", "Warning", "error", "fatal", "panic", "failed", "E   ", "FAILED",
    "exit code", "status code", "exit status", "No such file", "not found", "Permission denied",
    "cannot find", "错误", "失败", "エラー", "오류",
)  # fmt: skip
_NO_ERROR = re.compile(
    r"\b(?:0|no) (?:errors?|failed|failures)\b|\b(?:errors?|failed):? 0\b|^\s*--- PASS:",
    re.IGNORECASE,
)
# A line of a file that was read or searched, with its number: it may speak of errors, it is none.
_LISTED_CODE = re.compile(r"(?:[\w./-]+[:-])?\d+(?:→|[:|-]\s|\t)|\s*(?://|#|\*|/\*)")
# So may a line of one that was read without: "} catch (error: any) {" says what would be done.
_SOURCE = re.compile(
    r"""
    (?:(?:[\w./-]{1,200}[:-])?\d+[:-]|[-+>])?\s*(?:\}\s*)?
    (?: throw\s+(?:new\s+)?[\w.]+\s*[(;] | raise\s+[\w.]+(?:$|\(|\s+from\b)
      | return\s+(?:new\s+|await\s+)?[\w.]+!?\( | return\s+[frb]?["'`{[(]
      | catch\s*[({] | except\b.*:$ | (?:else\s+)?if\b.*[;:{]$
      | (?:(?:public|private|protected|static|async|export|default|pub)\s+)*
        (?:def|func|function|fn|class)\s.*[({:]$
      | (?:(?:const|let|var)\s+)?[\w.]+(?::\s*\w+)?\s+:?=\s.*[)({;]$
      | (?:[A-Za-z_]\w*\.)*(?:[a-z_]\w*!?|Errorf?|Fatalf?|New)\(\s*[frb]?["'`].*[)({,;]$
      | [a-z]\w*:\s[\w.]+,$
    )
    """,
    re.VERBOSE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_KINDS = {
    "flag": _FLAG,
    "date": _DATE,
    "time": _TIME,
    "version": _VERSION,
    "bare": _NUMBER,
    "range": _RANGE,
    "uuid": _UUID,
    "hash": _HASH,
    "code": _CODE,
    "hex": _HEX,
    "ticket": _TICKET,
    "phone": _PHONE,
    "slug": _SLUG,
    "path": _FILE,
    "name": _NAME,
    "dotted": _DOTTED,
    "kebab": _KEBAB,
}
_HYPHENED = frozenset({"flag", "date", "range", "uuid", "phone", "slug", "kebab"})
_UNHYPHENED = {kind: pattern for kind, pattern in _KINDS.items() if kind not in _HYPHENED}
_TRAILING = ".,:;!?"
_PIECES = re.compile(r"[A-Z]?[a-z]{1,6}|[A-Z]{1,4}|\d{1,3}|[^\w\s]+")
_WORD = re.compile(r"[^\W\d_]{3,}|[\u4e00-\u9fff]")


@dataclass(frozen=True)
class Fact:
    """An exact value and how much it was used."""

    value: str
    kind: str
    score: float
    is_used: bool = True
    "Whether the user or the assistant said it, or a call had it; else only tools printed it."


@dataclass
class _Use:
    kind: str
    most: float = 0.0
    "The weightiest use."
    total: float = 0.0
    is_used: bool = False
    last: int = 0
    "Index of the last message that has it."


def rank_facts(messages: Sequence[Message]) -> list[Fact]:
    """The exact values of some messages, those that were used most, and last, in front."""
    uses: dict[str, _Use] = {}
    for index, message in enumerate(messages):
        age = (len(messages) - 1 - index) / len(messages)
        recency = 0.5 ** (age / _HALF_LIFE)
        for source, text in texts_of(message):
            found = _found(source, text)
            if source == "result" and age < _FRESH:
                found += _quoted_errors(text)
            if not found:
                continue
            is_used = source != "result"
            near = max(_LEAST_SAID, recency) if is_used else recency
            weight = _WEIGHTS[source] * near * min(1.0, (_MANY / len(found)) ** 0.5)
            is_argument = source == "argument" and len(found) == 1
            for value, kind in found:
                use = uses.get(value)
                if use is None:
                    use = uses[value] = _Use(kind)
                is_sure = is_argument or (is_used and _is_moment(value, kind))
                sure = weight if is_sure else weight * _TRUST.get(kind, 1.0)
                use.most = max(use.most, sure)
                use.total += sure
                use.is_used = use.is_used or is_used
                use.last = index
    # Of equal ones the latest comes first.
    latest = sorted(uses.items(), key=lambda item: -item[1].last)
    facts = [Fact(value, use.kind, _score(value, use), use.is_used) for value, use in latest]
    return sorted(facts, key=lambda fact: -fact.score)


def _score(value: str, use: _Use) -> float:
    # The weightiest use says that a value matters; the others say it again, more quietly. A value
    # of many tokens takes the room of several others, and tokens are about what this counts.
    tokens = len(_PIECES.findall(value)) or 1
    cost: float = tokens ** (0.4 if use.is_used else 0.5)
    return (use.most + 2 * math.log1p(use.total)) / cost


def _is_moment(value: str, kind: str) -> bool:
    """Whether this is a time with its date: printed in each line of a log, but seldom said."""
    return kind == "time" and "T" in value


def _found(source: str, text: str) -> list[tuple[str, str]]:
    if source == "position":
        return []
    values = exact_values(_SUBSTITUTION.sub(r" \2 \3 ", text) if source == "command" else text)
    kinds = {kind for _, kind in values}
    if source in _PROSE and not kinds.isdisjoint(_PROSAIC):
        values = [found for value, kind in values for found in _without_prose(value, kind)]
    more: list[tuple[str, str]] = []
    if "dotted" in kinds:
        # In "state.started_at" it is "started_at" that has a meaning elsewhere.
        members = [value.rpartition(".")[2] for value, kind in values if kind == "dotted"]
        more += (found for member in members for found in _classified(member))
    if source == "command" and " " in text and len(text) <= _LONGEST_COMMAND and "\n" not in text:
        more.append((text, "command"))
    elif source in ("user", "assistant") and "`" in text:
        more += (found for code in _INLINE_CODE.findall(text) for found in _coded(code))
    return list(dict.fromkeys([*values, *more])) if more else values


def _without_prose(value: str, kind: str) -> tuple[tuple[str, str], ...]:
    if kind == "pair":
        return tuple(found for name in value.split("/") for found in _classified(name))
    return () if kind == "kebab" else ((value, kind),)


def _quoted_errors(text: str) -> list[tuple[str, str]]:
    lines = dict.fromkeys(_BULLETS.sub("", line, 1) for line in error_lines(text)[-2:])
    return [(line, "error") for line in lines if line in text and len(line) <= _LONGEST_COMMAND]


def _coded(code: str) -> Iterator[tuple[str, str]]:
    """What stands between backticks is meant exactly, be it a word, a name or a command."""
    found = exact_values(code)
    if found:
        yield from found
    elif code.isidentifier() and len(code) > 2:
        yield code, "word"
    if " " in code and code == code.strip() and _WORD.search(code):
        yield code, "command"


def exact_values(text: str) -> list[tuple[str, str]]:
    """(value, kind) for each different exact value in a text.

    The kinds: path, pair (of words, which may be a path), url, email, uuid, hash, code, ticket,
    version, date, time, amount, bare (a number without a unit), small (one of three digits,
    or in front of a colon), range, phone, hex (a colour or an address), slug (words with a number),
    flag, name, dotted, kebab. Ranking adds word and command (quoted as code) and error.
    """
    text = _ends(text)
    found: list[tuple[str, str]] = []

    def taking(kind: str) -> Callable[[re.Match[str]], str]:
        def take(match: re.Match[str]) -> str:
            value = match[0].rstrip(_TRAILING)
            if len(value) <= LONGEST:
                found.append((value, kind))
            return " "

        return take

    if "://" in text:
        text = _URL.sub(taking("url"), text)
    if "\\" in text:
        text = _WINDOWS_PATH.sub(taking("path"), text)
        text = _ESCAPED.sub(" ", text)
    if "→" in text or "\t" in text:
        text = _LINE_NUMBER.sub("", text)
    text = _AMOUNT.sub(taking("amount"), text)
    for candidate in dict.fromkeys(_CANDIDATE.findall(text)):
        found += _classified(candidate)
    return list(dict.fromkeys(found))


@lru_cache(maxsize=1 << 16)
def _classified(candidate: str) -> tuple[tuple[str, str], ...]:
    """The values in a run of characters without a space."""
    if candidate.isalpha() and (candidate.islower() or candidate.istitle()):
        return ()
    value = candidate.rstrip("/.:,;!?+=-").lstrip(":+=")
    if not 1 < len(value) <= LONGEST:
        return ()
    kind = _kind(value)
    if kind == "bare":
        kind = "small" if len(value) == 3 or candidate[-1] == ":" else kind
    if kind:
        return ((value, kind),)
    if value[0] in "#.":
        return _classified(value.lstrip("#."))
    for separator in "=:/.":
        if separator in value:
            parts = value.split(separator)
            if separator == ":" and _names_a_line(parts[0]):
                parts = [part for part in parts if not part.isdigit()]
            elif separator == ".":
                # What is not all of a number is none of it: "0-85-42.1-85-89z" draws a line.
                parts = [part for part in parts if not part[:1].isdigit()]
            return tuple(found for part in parts for found in _classified(part))
    return ()


def _names_a_line(start: str) -> bool:
    """Whether "src/a.py:17:" or "17:import re" begins so. The next edit moves the line."""
    return start.isdigit() or _kind(start) == "path"


def _kind(value: str) -> str | None:
    """What kind of exact value this is, if it is one as a whole."""
    if "/" in value:
        return "url" if _SERVED.fullmatch(value) else _kind_of_path(value)
    if "@" in value and _EMAIL.fullmatch(value):
        return "email"
    for kind, pattern in (_KINDS if "-" in value else _UNHYPHENED).items():
        if pattern.fullmatch(value):
            return None if kind == "name" and len(value) < _SHORTEST_NAME else kind
    return None


def _kind_of_path(value: str) -> str | None:
    if not _PATH.fullmatch(value):
        return None
    names = [name for name in value.split("/") if name not in ("", ".", "..", "~")]
    if not names or not any(
        name[0].isalpha() or name[0] in "._@" or name[-1].isalpha() for name in names
    ):
        return None
    if value.startswith(("~/", "./", "../")):
        return "path"
    if value.startswith("/"):
        return "path" if len(names) > 1 or _ROOTS.fullmatch(names[0]) else None
    if _FILE.fullmatch(names[-1]):
        return "path"
    is_named = all(len(name) > 1 and not _DECIMAL.fullmatch(name) for name in names)
    if is_named and len(names) > 2:
        return "path"
    return "pair" if is_named and len(names) == 2 else None


def error_lines(text: str) -> list[str]:
    """The lines of a tool's output that tell what went wrong."""
    text = _ends(text)
    clues = [clue for clue in _ERROR_CLUES if clue in text]
    if not clues:
        return []
    has_clue = re.compile("|".join(clues)).search
    return [
        " ".join(line.split())
        for line in text.splitlines()
        if has_clue(line)
        and _ERROR.search(line)
        and _WORD.search(line)
        and not (_is_source(line.strip()) or _NO_ERROR.search(line))
    ]


def _is_source(line: str) -> bool:
    return bool(_LISTED_CODE.match(line) or _SOURCE.match(line))


def _ends(text: str) -> str:
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    if len(text) <= _READ_CHARACTERS:
        return text
    half = _READ_CHARACTERS // 2
    return f"{text[:half]}\n{text[-half:]}"


def texts_of(message: Message) -> Iterator[tuple[str, str]]:
    """(source, text) for all that a message says, calls and hands back."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield ("user" if message.role == "user" else "assistant"), part.text
        elif isinstance(part, ToolCallPart):
            for key, value in part.arguments.items():
                argument = (
                    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                )
                if key in _COMMAND_KEYS:
                    yield "command", argument
                elif _PLACE_KEY.fullmatch(key):
                    yield "position", argument
                else:
                    yield "argument" if len(argument.split(None, 1)) == 1 else "call", argument
        elif isinstance(part, ToolResultPart):
            yield "result", part.output
