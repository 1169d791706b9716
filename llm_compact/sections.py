"""What a summary tells, section by section: read from any answer, checked, rendered as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import pydantic
from llm.parts import Message, ToolResultPart
from pydantic.json_schema import SkipJsonSchema

from .conversation import text_of
from .errors import SummarizerError
from .language import all_words, lower_in_place, words
from .summarizers.cues import without_notes
from .summary import Head, in_code, is_record_line


class UnreadableAnswer(SummarizerError):
    """The answer looks like JSON, and can't be read as such."""


class Rule(pydantic.BaseModel):
    """What the user laid down for all that follows."""

    quote: str
    message: int = 0
    "Number of the message that says it; 0 where that is not known."


class Summary(pydantic.BaseModel):
    """What a summary tells, whatever form it came in. An item is a line or more of Markdown."""

    goal: str = ""
    role: str = ""
    rules: list[Rule] = []
    decisions: list[str] = []
    done: list[str] = []
    in_progress: list[str] = []
    open: list[str] = []
    findings: list[str] = []
    errors: list[str] = []
    exact_values: list[str] = []
    language: str = ""

    # What no model is asked for.
    prose: SkipJsonSchema[str] = ""
    "What stands in front of all sections; all of it, where a small model writes no headings."
    unquoted: SkipJsonSchema[list[str]] = []
    "What was told as a rule of the user's, and is in none of the user's messages."
    other: SkipJsonSchema[dict[str, list[str]]] = {}
    "Sections that we did not ask for, by their heading."

    @pydantic.field_validator("goal", "role", "language", "prose", mode="before")
    @classmethod
    def _one_text(cls, value: Any) -> str:
        text = _flat(value if isinstance(value, str) else "\n".join(_items(value))).strip()
        return "" if _NOTHING.fullmatch(text) else text

    @pydantic.field_validator("rules", mode="before")
    @classmethod
    def _some_rules(cls, value: Any) -> list[Any]:
        found = value if isinstance(value, list) else _items(value)
        return [rule for rule in map(_rule, found) if rule.quote]

    @pydantic.field_validator(
        *("decisions", "done", "in_progress", "open", "findings", "errors", "exact_values"),
        mode="before",
    )
    @classmethod
    def _some_items(cls, value: Any) -> list[str]:
        return _items(value)

    @property
    def is_empty(self) -> bool:
        """Whether it tells nothing at all."""
        return not any(value for name, value in self if name != "language")


HEADINGS = {
    "goal": "goal",
    "role": "role",
    "rules": "rules",
    "decisions": "decisions",
    "done": "done",
    "in_progress": "in_progress",
    "open": "pending",
    "unquoted": "statements",
    "findings": "findings",
    "errors": "fixes",
    "exact_values": "values",
}
"For each section the key of its heading in languages.yaml, in the order of the summary."

_TEXTS = ("prose", "goal", "role")
_USERS = ("rules", "pins")
"The keys of the headings under which stands what the user laid down."

# What a model may call a section that it was asked for by another name.
_ALSO = {
    "goal": r"goals?|(?:the |main |user'?s )*(?:goal|objective|aim|purpose|intent)s?",
    "role": r"roles?(?: and persona)?|persona",
    "rules": r"(?:standing |user )*(?:rules|preferences|constraints)(?: and .*| of .*)?",
    "decisions": r"(?:key |main )*decisions(?: .*)?",
    "done": r"done|completed(?: work| tasks)?|accomplished|asked and (?:answered|done)",
    "in_progress": r"in[- ]progress|current (?:work|state|status)|ongoing(?: work)?",
    "open": r"open(?: questions?.*| points| issues)?|pending(?: .*)?|unresolved|remaining(?: .*)?",
    "findings": r"(?:tool |key )*findings",
    "errors": r"errors?(?: and .*)?",
    "exact_values": r"(?:exact |key )*values",
}
# What a model may put all of its summary into.
_WRAPPER = re.compile(r"(?:summary|record|compaction|answer|response|text|content)", re.IGNORECASE)
_NUMBERING = re.compile(r"^(?:\d{1,2}|[IVX]{1,4})[.)、]\s*")
# "#Tides" is a tag and "#214" a ticket, where "##Goal" only lacks its blank.
_MARK = r"(?:#{1,6}(?=\s)|#{2,6}(?=[^\W\d_]|\*\*))"
_MARKED = re.compile(rf"^ {{0,3}}({_MARK})\s*(.*?)\s*#*\s*$")
_MARKS = re.compile(rf"^\s*(?:{_MARK}\s*)+")
_BOLD = re.compile(r"^\s*(?:\d{1,2}[.)]\s*)?(\*\*|__)(?=\S)(.{1,80}?)\1\s*[:：]?\s*$")
_PLAIN = re.compile(r"^\s*([^.!?。*\-].{1,60}?)\s*[:：]?\s*$")
_INLINE = re.compile(r"^\s*(?:[-*]\s+)?\*\*(.{2,60}?)\s*[:：]?\*\*\s*[:：]?\s+(\S.*)$")
# The mark of a block that never ends would make code of all that follows.
_UNCLOSED = re.compile(r"^(\s*(?:[-*+]\s+)?)[`~]{3,}")
_WRAPPED = re.compile(r"\A\s*```(?:markdown|md|text)?[ \t]*\n(.*)\n```\s*\Z", re.DOTALL)
_BULLET = re.compile(r"^(?:[-*+•]|\d{1,3}[.)])\s+")
_NOTHING = re.compile(
    r"[(\[（*_\s]*"
    r"(?:none|nothing|n/?a|not applicable|无|無|没有|なし|特になし|없음|yok|keine?r?s?"
    r"|aucune?|ninguno|ninguna|nenhuma?|nessuno|nessuna|нет|[-–—])[.。)\]）*_\s]*",
    re.IGNORECASE,
)
# What models say before they begin.
_PREAMBLE = re.compile(
    r"(?:sure|certainly|of course|okay|ok|here(?:['’]s| is)|below is)\b[^\n]{0,80}",
    re.IGNORECASE,
)
_QUOTE = re.compile(r"\"([^\"]+)\"|“([^”]+)”|„([^“]+)“|「([^」]+)」|«\s*([^»]+?)\s*»|『([^』]+)』")
_MESSAGE = re.compile(r"[\[(（#]\s*(?:\w{0,10}[ .]*)?#?(\d+)\s*[\])）]?")
_FENCED = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE)
_ELLIPSIS = re.compile(r"\s*(?:…|\.{3}|\[…\]|\[\.{3}\])\s*")
SHORTEST_QUOTE = 4


def read_summary(text: str, language: str) -> Summary:
    """What an answer tells: JSON, Markdown with whatever headings, or plain prose.

    Raises `UnreadableAnswer` for JSON that is none or tells something else, and `SummarizerError`
    where it is cut off.
    """
    text = _text_in(text)
    data = _json_in(text)
    if data is None:
        return _read_markdown(text, language)
    wrapped = _wrapped_in(data)
    if wrapped is not None:
        return read_summary(wrapped, language)
    known: dict[str, Any] = {}
    other: dict[str, list[str]] = {}
    for key, value in data.items():
        name = key if key in _ALSO or key == "language" else _field(_bare(key), language)
        if name in known:
            known[name] = [*_listed(known[name]), *_listed(value)]
        elif name:
            known[name] = value
        else:
            other[key] = _items(value)
    if data and not known.keys() - {"language"}:
        raise UnreadableAnswer("answered with JSON that has none of the sections asked for")
    try:
        return Summary(**known, other={name: items for name, items in other.items() if items})
    except pydantic.ValidationError as ex:
        raise UnreadableAnswer("answered with JSON that can't be read") from ex


def _text_in(text: str) -> str:
    """What a string of JSON says, where the answer is one; else the answer."""
    bare = text.strip()
    if len(bare) > 1 and bare[0] == bare[-1] == '"':
        with suppress(ValueError):
            return str(json.loads(bare, strict=False))
    return text


def _json_in(text: str) -> dict[str, Any] | None:
    """The object in an answer, be it alone in a list; None where the answer is none."""
    begin = re.search(r"\A(?:[^\n{}#]{0,200}\n)?\s*(?:```\w*\s*)?(?=(?:\[\s*)?\{\s*[\"}])", text)
    if not begin:
        return None
    inside = text[begin.end() :]
    last = "]" if inside[0] == "[" else "}"
    end = inside.rfind(last)
    try:
        data = json.loads(inside[: end + 1], strict=False)
    except ValueError as ex:
        if inside.rstrip().rstrip("`").rstrip().endswith(last):
            raise UnreadableAnswer("answered with JSON that can't be read") from ex
        raise SummarizerError("was cut off in the middle of its answer") from ex
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if not isinstance(data, dict):
        raise UnreadableAnswer("answered with a list of JSON instead of one summary")
    return data


def _wrapped_in(data: Mapping[str, Any]) -> str | None:
    """The answer that is all there is in an object, under a name such as "summary"."""
    for name, inside in data.items():
        if len(data) == 1 and isinstance(inside, str | dict) and _WRAPPER.fullmatch(name):
            return inside if isinstance(inside, str) else json.dumps(inside)
    return None


def _read_markdown(text: str, language: str) -> Summary:
    fields: dict[str, Any] = {}
    other: dict[str, list[str]] = {}
    for name, heading, lines in _sections(text, language):
        if name in _TEXTS:
            told = "\n".join(lines).strip()
            is_talk = name == "prose" and _PREAMBLE.fullmatch(told)
            if told and not is_talk:
                fields[name] = f"{fields[name]}\n{told}" if name in fields else told
        else:
            items = fields.setdefault(name, []) if name else other.setdefault(heading, [])
            items += [item for item in _items_in(lines) if item not in items]
    return Summary(**fields, other={heading: items for heading, items in other.items() if items})


def _sections(text: str, language: str) -> list[tuple[str | None, str, list[str]]]:
    """(field of the summary or None, heading, lines) for each section, in order."""
    wrapped = _WRAPPED.match(text)
    inside = wrapped[1] if wrapped and "\n```" not in f"\n{wrapped[1]}" else text
    lines = [line.rstrip() for line in inside.splitlines() if not is_record_line(line)]
    marks = filter(None, map(_MARKED.match, lines))
    has_marks = any(_field(_bare(mark[2]), language) for mark in marks)
    found: list[tuple[str | None, str, list[str]]] = [("prose", "", [])]
    level = 0
    for line, is_code in zip(lines, in_code(lines), strict=True):
        begun = None if is_code else _heading(line, language, has_marks)
        if begun is None:
            found[-1][2].append(line)
            continue
        name, heading, depth, rest = begun
        if name is None and found[-1][0] not in (None, "prose") and depth > level > 0:
            # A subheading of a section that we know stays in it.
            found[-1][2].append(f"- **{heading}**")
            continue
        level = depth
        found.append((name, heading, [rest] if rest else []))
    return found


def _heading(line: str, language: str, has_marks: bool) -> tuple[str | None, str, int, str] | None:
    """(field or None, heading, level, what follows in the line) if a line is a heading.

    Where a model marks headings as Markdown does, nothing else is one.
    """
    marked = _MARKED.match(line)
    if marked:
        heading = _bare(marked[2])
        return _field(heading, language), heading, len(marked[1]), ""
    if has_marks:
        return None
    bold = _BOLD.match(line)
    if bold:
        heading = _bare(bold[2])
        return _field(heading, language), heading, 7, ""
    inline, plain = _INLINE.match(line), _PLAIN.match(line)
    for match, rest in ((inline, inline[2] if inline else ""), (plain, "")):
        name = _field(_bare(match[1]), language) if match else None
        if match and name:
            return name, _bare(match[1]), 7, rest
    return None


def _bare(heading: str) -> str:
    """A heading without numbers, emphasis and colon."""
    return _NUMBERING.sub("", heading.strip().strip("*_").strip()).strip("*_ ").rstrip(":： ")


def _field(heading: str, language: str) -> str | None:
    folded = heading.casefold()
    # Whatever is told as the user's, in any language, is looked up in what the user said.
    if folded in _users_headings():
        return "rules"
    for name, key in HEADINGS.items():
        own = {words(language)[key].casefold(), words("en")[key].casefold()}
        also = _ALSO.get(name)
        if folded in own or (also and re.fullmatch(also, folded)):
            return name
    return None


@cache
def _users_headings() -> frozenset[str]:
    return frozenset(said[key].casefold() for said in all_words().values() for key in _USERS)


def _items_in(lines: Sequence[str]) -> list[str]:
    """The items of a section: each bullet with what is indented below it, each paragraph."""
    items: list[list[str]] = []
    is_new = True
    is_begun = False
    for line, is_code in zip(lines, in_code(lines), strict=True):
        # A block of code belongs to the item above it.
        bullet = None if is_code and is_begun else _BULLET.match(line)
        is_paragraph = is_new and not line.startswith((" ", "\t")) and not is_code
        if line.strip() and (bullet or is_paragraph or not items):
            items.append([line[bullet.end() :] if bullet else line])
        elif line.strip() or is_code:
            items[-1].append(line)
        is_begun = is_code
        is_new = not line.strip() and not is_code
    told = (_flat("\n".join(_dedented(item))).strip() for item in items)
    return [item for item in told if item and not _NOTHING.fullmatch(item)]


def _dedented(item: Sequence[str]) -> list[str]:
    """The lines of an item, those below the first without the indent that puts them there."""
    below = item[1:]
    if all(line.startswith("  ") for line in below if line.strip()):
        below = [line[2:] for line in below]
    return [item[0], *below]


def _items(value: Any) -> list[str]:
    """The items in whatever JSON a model wrote where a list of texts was asked for."""
    if value is None or isinstance(value, bool):
        return []
    if isinstance(value, dict):
        told = [f"{name}: {'; '.join(_items(inner))}" for name, inner in value.items() if inner]
        return ["; ".join(told)] if told else []
    if isinstance(value, list):
        return [item for inner in value for item in _items(inner)]
    return _items_in(str(value).splitlines())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _rule(value: Any) -> Rule:
    """A rule from JSON or from a line such as: "never touch main" [12]."""
    if isinstance(value, Rule):
        return value
    if isinstance(value, dict):
        return _numbered(
            str(value.get("quote", "")), re.search(r"(\d+)", str(value.get("message")))
        )
    text = str(value)
    quotes = [next(filter(None, match.groups())) for match in _QUOTE.finditer(text)]
    outside = _QUOTE.sub("", text)
    longest = max(quotes, key=len, default="")
    # A sentence that only quotes a word is not a quote.
    is_quote = len(_MESSAGE.sub("", outside)) < len(longest)
    return _numbered(longest if is_quote else _MESSAGE.sub("", text), _MESSAGE.search(outside))


def _numbered(quote: str, number: re.Match[str] | None) -> Rule:
    return Rule(quote=_unquoted(quote), message=int(number[1]) if number else 0)


def _unquoted(text: str) -> str:
    return " ".join(text.split()).strip('"“”„「」『』«»').strip()


def with_checked_rules(summary: Summary, head: Head, earlier: Sequence[Rule] = ()) -> Summary:
    """The summary with the user's own words as rules, and what nobody said told as such.

    The number of a message is its place among the original messages of all generations. `earlier`
    are the rules of the previous summary, which were checked then: not every log reaches so far.
    """
    if not summary.rules:
        return summary
    said = [*_said(head.originals), *((rule.quote, rule.message) for rule in earlier)]
    folded = [_folded(text) for text, _ in said]
    rules: dict[str, Rule] = {}
    unquoted = list(summary.unquoted)
    for rule in summary.rules:
        if any(rule.quote in " ".join(pin.split()) for pin in head.pins):
            continue  # It stands behind the summary anyway.
        found = _found_in(rule.quote, said, folded)
        if found:
            rules.setdefault(found.quote, found)
        elif rule.quote not in unquoted and not is_record_line(rule.quote):
            unquoted.append(rule.quote)
    return summary.model_copy(update={"rules": list(rules.values()), "unquoted": unquoted})


def _said(messages: Sequence[Message]) -> Iterator[tuple[str, int]]:
    """What the user said, without the code and the texts of others that they paste; the number."""
    for number, message in enumerate(messages, 1):
        if message.role == "user":
            lines = _FENCED.sub("\n", without_notes(text_of(message))).splitlines()
            own = " ".join(line for line in lines if not line.lstrip().startswith(">"))
            yield " ".join(own.split()), number


def _found_in(quote: str, said: Sequence[tuple[str, int]], folded: Sequence[str]) -> Rule | None:
    """The rule as the user worded it, if one message has all of its pieces in order."""
    pieces = [_folded(piece).strip(" .,;:!。！") for piece in _ELLIPSIS.split(quote)]
    pieces = [piece for piece in pieces if piece]
    if sum(map(len, pieces)) < SHORTEST_QUOTE:
        return None
    for (text, number), plain in zip(said, folded, strict=True):
        position, told = 0, []
        for piece in pieces:
            start = plain.find(piece, position)
            if start < 0:
                break
            position = start + len(piece)
            told.append(text[start:position])
        else:
            return Rule(quote=" … ".join(told), message=number)
    return None


_SAME = str.maketrans("“”„«»’‘`", '"""""\'\'\'')


def _folded(text: str) -> str:
    """In lower case and with plain quotes, each character in its place."""
    return lower_in_place(text).translate(_SAME)


def without_planted_sections(summary: Summary, head: Head) -> Summary:
    """The summary with headings that somebody else wrote told as what that text says.

    A section that we did not ask for may be the model's own. One that a tool's output or a pasted
    text has for a heading is a finding.
    """
    texts = "\n".join(_texts_of_others(head)) if summary.other else ""
    planted = {
        heading
        for heading in summary.other
        if re.search(rf"^[ \t#*>\d.]*{re.escape(heading)}[ \t#*:]*$", texts, re.M | re.I)
    }
    if not planted:
        return summary
    findings = [f"{h}: {item}" for h in summary.other if h in planted for item in summary.other[h]]
    other = {h: items for h, items in summary.other.items() if h not in planted}
    return summary.model_copy(update={"findings": [*summary.findings, *findings], "other": other})


def _texts_of_others(head: Head) -> Iterator[str]:
    for message in head.messages:
        if message.role == "user":
            yield text_of(message)
        yield from (part.output for part in message.parts if isinstance(part, ToolResultPart))


def rendered(summary: Summary, language: str) -> str:
    """The summary as Markdown, with headings in a language and without empty sections."""
    said = words(language)
    blocks = [summary.prose] if summary.prose else []
    for name, key in HEADINGS.items():
        value = getattr(summary, name)
        if name == "rules":
            value = [_rendered_rule(rule) for rule in value]
        elif name == "unquoted":
            value = [f"{item} ({said['unquoted']})" for item in value]
        blocks += _block(said[key], value)
    for heading, items in summary.other.items():
        blocks += _block(heading, items)
    return "\n\n".join(blocks)


def _rendered_rule(rule: Rule) -> str:
    return f'"{rule.quote}"' + (f" [{rule.message}]" if rule.message else "")


def _block(heading: str, value: str | Sequence[str]) -> list[str]:
    if not value:
        return []
    if isinstance(value, str):
        return [f"## {heading}\n{value}"]
    items = [re.sub(r"\n(?=.)", "\n  ", f"- {item}") for item in value]
    return ["\n".join([f"## {heading}", *items])]


def _flat(text: str) -> str:
    """The text without headings and first lines: none of it can begin a section or a summary."""
    lines = [line for line in text.splitlines() if not is_record_line(line)]
    flat = []
    for line, is_code in zip(lines, in_code(lines), strict=True):
        bare = line if is_code else _UNCLOSED.sub(r"\1", _MARKS.sub("", line))
        if bare.strip() or not line.strip():
            flat.append(bare)
    return "\n".join(flat)


def schema(told: Mapping[str, str]) -> dict[str, Any]:
    """The JSON schema that a model is asked to fill, `told` saying what goes into each section.

    Plain enough for every provider: no references, no defaults, everything required.
    """
    full = Summary.model_json_schema()
    rule = _plain_schema(full["$defs"]["Rule"])
    properties = {}
    for name, given in full["properties"].items():
        if name == "rules":
            properties[name] = {"type": "array", "items": rule}
        else:
            properties[name] = {key: given[key] for key in ("type", "items") if key in given}
        if name in told:
            properties[name]["description"] = told[name]
    return {"type": "object", "properties": properties, "required": list(properties)}


def _plain_schema(model: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: {"type": field["type"]} for name, field in model["properties"].items()}
    return {"type": "object", "properties": properties, "required": list(properties)}
