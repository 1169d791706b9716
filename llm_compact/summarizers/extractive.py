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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm.parts import Message, ToolCallPart, ToolResultPart

from ..conversation import is_request, local_calls, text_of
from ..errors import SummarizerError
from ..estimate import estimate
from ..facts import Fact, error_lines, exact_values, rank_facts
from ..language import words
from ..summary import Answer, Head, Usage, sections_of

MOST_TOKENS = 4_000
SMALL_HEAD_TOKENS = 40

# The share of the summary that each section may fill before the others have had their turn.
_SHARES = {
    "rules": 0.12,
    "requests": 0.24,
    "earlier": 0.25,
    "statements": 0.24,
    "calls": 0.14,
    "errors": 0.06,
    "files": 0.08,
    "values": 0.12,
}
_LEFTOVERS = ("requests", "statements", "values", "files", "calls", "errors", "rules", "earlier")
_INLINE = ("files", "values")

_RULE = re.compile(
    r"\b(never|always|from now on|must not|mustn't|under no circumstances|do not|don't|make sure"
    r"|only ever|niemals|immer|ab jetzt|auf keinen fall|toujours|jamais|siempre|nunca|sempre|mai"
    r"|asla|her zaman|mutlaka|никогда|всегда|обязательно)\b"
    r"|不要|必须|始终|永远|禁止|务必|以后都|一律|必ず|常に|しないで|今後は|항상|절대|반드시"
    r"|하지 ?마",
    re.IGNORECASE,
)
# "I have never been to Rome" lays down nothing.
_NARRATIVE = re.compile(
    r"\b(i|we|he|she|they|you|it)('ve|'d| have| had| was| were| am| don't| do not| never| always)\b"
    r"|[?？]$",
    re.IGNORECASE,
)
_DECISION = re.compile(
    r"\b(decid\w+|chose|agreed|instead of|because|rejected|settled on|let's (?:use|go with|keep)"
    r"|we(?:'ll| will) (?:use|go|keep)|fixed|root cause|turns? out|resolved|works? now"
    r"|pass(?:es|ed)|fail(?:s|ed)|done|completed?|created|updated|removed|added|renamed|merged"
    r"|released|deployed|confirmed|booked|cancel+ed|measured|result|total"
    r"|the (?:answer|problem|reason|cause) (?:is|was)"
    r"|entschieden|weil|behoben|erledigt|karar|çünkü|tamamlandı|décidé|parce que|decidido|porque)\b"
    r"|决定|因为|所以|改为|采用|完成|修复|解决|原因|结果|成功|失败|決め|決定|完了|修正|原因|ため"
    r"|결정|완료|수정|때문|해결",
    re.IGNORECASE,
)
_INTENTION = re.compile(
    r"(\w+[,.!]? )?(let me|i'll|i will|i'm going to|i need to|let's (?:see|check|look))\b"
    r"|now (?:i|let|fix|update|revert|remove|add|run|check|verify|the)\b"
    r"|(sure|certainly|great|okay|ok|thanks?|thank you|you're welcome|sorry|i'm sorry|i apologi)\b"
    r"|would you like|is there anything|好的|当然|もちろん",
    re.IGNORECASE,
)
_CHANGES = re.compile(
    r"^\w*(write|edit|create|update|delete|insert|book|cancel|commit|apply|patch)"
)
_PATH_ARGUMENT = re.compile("path|file|url|command|query", re.IGNORECASE)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}|\d+|[「《“][^」》”]{2,20}[」》”]")
_CODE_BLOCK = re.compile(r"^```.*?^```\s*$", re.DOTALL | re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)|\n+|(?<=[。！？；])")
_BULLET = re.compile(r"^\s*(?:[-*•>]|\d+[.)])\s+|\*\*")
_PIECES = re.compile(r"…| -> |[(),\"]|\b\w+=|user: |\d+x")


@dataclass(frozen=True)
class Line:
    """A line that may become part of the summary."""

    section: str
    text: str
    score: float
    "How much it matters among the lines of its section."
    place: float
    "Where it stands in the conversation."


class Extractive:
    """The summarizer `extractive`."""

    name = "extractive"
    prompt_version = "1"

    def summarize(self, head: Head, show: Callable[[str], None]) -> Answer:
        """Never fails; a tenth of the head at most, and the previous summary's size at least."""
        summary = extract(head)
        show(summary)
        return Answer(summary, Usage(input=0, output=0, calls=0))


def extractive(options: Sequence[tuple[str, str]]) -> Extractive:
    """Raises `SummarizerError` for any option: there are none."""
    if options:
        raise SummarizerError(f"extractive has no option {options[0][0]!r}")
    return Extractive()


def extract(head: Head) -> str:
    """The summary of a head, as Markdown in the language of the conversation."""
    said = words(head.language)
    record = said["record"].replace("{messages}", f"{len(head.originals):,}")
    room = budget(head) - estimate(record)
    chosen = _choose(_candidates(head, said["open"], room), said, room)
    blocks = [record]
    for section in _SHARES:
        lines = sorted((line for line in chosen if line.section == section), key=_place)
        if lines:
            blocks.append("\n".join([f"## {said[section]}", *_rendered(section, lines)]))
    return "\n\n".join(blocks)


def budget(head: Head) -> int:
    """How many tokens the summary may have.

    A tenth of what it replaces. The previous summary stands for far more than its own size, so
    its successor may be as large: a tenth of it again would fade with every generation.
    """
    floor = min(SMALL_HEAD_TOKENS, head.tokens // 3)
    return min(MOST_TOKENS, max(head.tokens // 10, floor, estimate(head.previous or "")))


def _rendered(section: str, lines: Sequence[Line]) -> list[str]:
    if section in _INLINE:
        return ["- " + ", ".join(line.text for line in lines)]
    return [f"- {line.text}" for line in lines]


def _place(line: Line) -> float:
    return line.place


def _choose(lines: Sequence[Line], said: Mapping[str, str], room: int) -> list[Line]:
    """The best lines of each section within its share, then whatever else there is room for."""
    by_section = {
        section: sorted((x for x in lines if x.section == section), key=lambda x: -x.score)
        for section in _SHARES
    }
    shares = sum(_SHARES[section] for section, found in by_section.items() if found)
    chosen: dict[str, list[Line]] = {section: [] for section in _SHARES}
    text = ""
    left = room

    def fill(section: str, allowance: float) -> None:
        nonlocal text, left
        for line in by_section[section]:
            if line in chosen[section] or (section in _INLINE and line.text in text):
                continue
            cost = estimate(line.text) + 2
            if not chosen[section]:
                cost += estimate(said[section]) + 3
            if cost <= min(allowance, left):
                chosen[section].append(line)
                text += line.text + "\n"
                allowance -= cost
                left -= cost

    for section, found in by_section.items():
        if found:
            fill(section, room * _SHARES[section] / shares)
    for section in _LEFTOVERS:
        fill(section, left)
    return [line for found in chosen.values() for line in found]


def _candidates(head: Head, open_mark: str, room: int) -> list[Line]:
    messages = head.originals
    facts = rank_facts(messages)
    return [
        *_request_lines(messages, open_mark, room),
        *_statement_lines(messages),
        *_call_lines(messages),
        *_error_lines(messages),
        *_fact_lines(facts),
        *_earlier_lines(head),
    ]


def _request_lines(messages: Sequence[Message], open_mark: str, room: int) -> Iterator[Line]:
    """What the user asked, quoted; the first request is the goal, the last ones are the present."""
    asked = [index for index in range(len(messages)) if is_request(messages, index)]
    tokens = min(60, max(14, int(room * _SHARES["requests"] / (len(asked) or 1))))
    for number, index in enumerate(asked):
        text = shorten(text_of(messages[index]), tokens)
        if not text:
            continue
        upto = asked[number + 1] if number + 1 < len(asked) else len(messages)
        answered = any(m.role == "assistant" and text_of(m) for m in messages[index:upto])
        mark = "" if answered else f" ({open_mark})"
        values = len(set(exact_values(text)))
        score = _recency(index, messages) + 0.2 * min(values, 3) + (2 if number == 0 else 0)
        yield Line("requests", f'"{text}"{mark}', score + (0 if answered else 1), index)


def _statement_lines(messages: Sequence[Message]) -> Iterator[Line]:
    """Rules of the user, and sentences that tell a decision, a result or a fact."""
    seen: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role not in ("user", "assistant"):
            continue
        for position, sentence in enumerate(_sentences(text_of(message))):
            if sentence in seen:
                continue
            seen.add(sentence)
            place = index + position / 1_000
            if (
                message.role == "user"
                and _RULE.search(sentence)
                and not _NARRATIVE.search(sentence)
            ):
                yield Line("rules", f'"{shorten(sentence, 60)}"', 1 / (1 + index), place)
                continue
            score = _salience(sentence, message.role) + 0.5 * _recency(index, messages)
            who = "" if message.role == "assistant" else "user: "
            yield Line("statements", who + shorten(sentence, 50), score, place)


def _sentences(text: str) -> list[str]:
    prose = _CODE_BLOCK.sub("\n", text)
    found = []
    for piece in _SENTENCE_END.split(prose):
        sentence = " ".join(_BULLET.sub("", piece).split())
        if estimate(sentence) >= 5 and not sentence.startswith(("|", "#", "<", "{", "import ")):
            found.append(sentence)
    return found


def _salience(sentence: str, role: str) -> float:
    score = 1.2 * min(2, len(_DECISION.findall(sentence))) + 0.3 * (role == "user")
    score += 0.4 * min(3, len(set(exact_values(sentence))))
    score += 0.2 * min(4, len(_NAME.findall(sentence)))
    if sentence.endswith(("?", "？")):
        score -= 0.8
    if _INTENTION.match(sentence):
        score -= 1.0
    return score


def _call_lines(messages: Sequence[Message]) -> Iterator[Line]:
    """Tool calls as "name(arguments) -> outcome"; the same call again counts, and is told once."""
    outcomes = {
        part.tool_call_id: part
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResultPart)
    }
    last: dict[str, tuple[int, ToolCallPart]] = {}
    times: Counter[str] = Counter()
    for index, message in enumerate(messages):
        for call in local_calls(message):
            shown = f"{call.name}({_arguments(call)})"
            last[shown] = (index, call)
            times[shown] += 1
    for shown, (index, call) in last.items():
        result = outcomes.get(call.tool_call_id)
        outcome, failed = _outcome(result)
        often = f" ({times[shown]}x)" if times[shown] > 1 else ""
        score = _recency(index, messages) + 0.6 * failed + 0.4 * bool(_CHANGES.search(shown))
        yield Line("calls", f"{shown}{often} -> {outcome}", score + 0.1 * times[shown], index)


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


def _outcome(result: ToolResultPart | None) -> tuple[str, bool]:
    if result is None:
        return "no result", False
    if result.exception:
        return shorten(result.exception, 30), True
    errors = error_lines(result.output)
    if errors:
        return shorten(errors[-1], 30), True
    lines = [line for line in result.output.splitlines() if line.strip()]
    if not lines:
        return "no output", False
    more = f" ({len(lines):,} lines)" if len(lines) > 3 else ""
    return shorten(lines[0], 20) + more, False


def _error_lines(messages: Sequence[Message]) -> Iterator[Line]:
    last: dict[str, tuple[int, str]] = {}
    times: Counter[str] = Counter()
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                for line in [part.exception] if part.exception else error_lines(part.output):
                    # The same error with another address or line number is the same error.
                    kind = re.sub(r"\d+", "0", line)
                    last[kind] = (index, line)
                    times[kind] += 1
    for kind, (index, line) in last.items():
        score = _recency(index, messages) + math.log(times[kind])
        yield Line("errors", shorten(line, 50), score, index)


def _fact_lines(facts: Sequence[Fact]) -> Iterator[Line]:
    for place, fact in enumerate(facts):
        section = "files" if fact.kind == "path" else "values"
        yield Line(section, fact.value, fact.score, place)


def _earlier_lines(head: Head) -> Iterator[Line]:
    """What the previous summary says in its own words; its quotes are found again anyway."""
    if not head.previous:
        return
    originals = _everything(head.originals)
    record = _no_digits(words(head.language)["record"].replace("{messages}", ""))
    lines = [line for _, section in sections_of(head.previous) for line in section]
    for place, line in enumerate(lines):
        pieces = [p.strip() for p in _PIECES.split(line) if len(p.strip()) >= 6]
        is_quoted = bool(pieces) and all(piece in originals for piece in pieces)
        if not is_quoted and _no_digits(line) != record:
            yield Line("earlier", line, 1 + 0.3 * len(set(exact_values(line))), place)


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


def _no_digits(text: str) -> str:
    return re.sub(r"[\d,]", "", text)


def _recency(index: int, messages: Sequence[Message]) -> float:
    return (index + 1) / len(messages)


def shorten(text: str, tokens: int) -> str:
    """One line of about so many tokens: the beginning, and the end of a much longer text."""
    text = " ".join(text.split())
    size = estimate(text)
    if size <= tokens:
        return text
    characters = max(8, len(text) * tokens // size - 2)
    if size < 4 * tokens:
        return _whole_words(text[:characters]) + "…"
    end = characters // 4
    return (
        f"{_whole_words(text[: characters - end])} … {text[-end:].partition(' ')[2] or text[-end:]}"
    )


def _whole_words(text: str) -> str:
    start, space, _ = text.rpartition(" ")
    return start if space and len(start) > len(text) * 2 // 3 else text
