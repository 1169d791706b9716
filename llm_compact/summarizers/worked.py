"""What tools did in a conversation and what earlier summaries say, as lines for a summary."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from llm.parts import Message, ToolCallPart, ToolResultPart

from ..conversation import answered_calls, text_of
from ..facts import error_lines, exact_values
from ..language import words
from ..summary import Head, sections_of
from .line import MARK, SECTIONS, Line, recency, shorten

_CHANGES = re.compile(
    r"^\w*(write|edit|create|update|delete|insert|book|cancel|commit|apply|patch)"
)
_PATH_ARGUMENT = re.compile("path|file|url|command|query", re.IGNORECASE)
_MARKS = re.compile(r"^\s*(?:[`~]{3,}\w*\s*$|#{1,6}\s+)?")
_PIECES = re.compile(r"…|\[→ [^\]]*\]| -> |[(),\"]|\b\w+=|user: |\d+x")

Errors = Mapping[int, Sequence[str]]
"The error lines of each tool output, by the identity of its part: to find them takes a while."


def worked_lines(messages: Sequence[Message]) -> Iterator[Line]:
    """What tools were called for and what they answered, and what went wrong."""
    errors = {
        id(part): error_lines(part.output)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResultPart) and not part.exception
    }
    yield from _call_lines(messages, errors)
    yield from _error_lines(messages, errors)


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
        score = recency(index, messages) + 0.6 * failed + 0.4 * bool(_CHANGES.search(shown))
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
                    last[kind] = (index, MARK.sub("", line))
                    times[kind] += 1
    for kind, (index, line) in last.items():
        score = recency(index, messages) + math.log(times[kind])
        yield Line("errors", shorten(line, 50), score, index)


def earlier_lines(head: Head) -> Iterator[Line]:
    """What the previous summary says in its own words; its quotes are found again anyway.

    Where the originals are at hand, the sections that this summarizer wrote itself were taken
    from them and are taken anew. Only what it had carried over is carried on.
    """
    if not head.previous:
        return
    said = words(head.language)
    taken_anew = {said["rules"]}
    if len(head.originals) > len(head.messages):
        taken_anew |= {said[section] for section in (*SECTIONS, "values") if section != "earlier"}
    originals = _everything(head.originals)
    lines = [
        # Of a block of code only its lines are told: half of its marks would make code of the rest.
        _MARKS.sub("", line)
        for heading, section in sections_of(head.previous)
        for line in section
        if heading not in taken_anew
    ]
    for place, line in enumerate(dict.fromkeys(filter(None, lines))):
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
