"""What a summary still carries of what is needed later, on a corpus of real conversations.

Exact values are looked for by an extraction of this file's own, so that llm_compact/facts.py does
not measure itself. The corpus is not part of the project: name it with `--corpus` or
LLM_COMPACT_CORPUS. Run it as `python bench/fidelity.py`, best where bpe-openai is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart

from llm_compact.errors import SummarizerError
from llm_compact.language import language_of, words
from llm_compact.rules import with_rules
from llm_compact.summarizers import get_summarizer
from llm_compact.summarizers.extractive import with_quotes
from llm_compact.summary import Head, Watch, sections_of
from llm_compact.tokens import count_text, message_tokens
from llm_compact.values import with_values
from llm_compact.vocabulary import counter

CORPUS = Path(__file__).parents[2] / "shared" / "corpus" / "dev.jsonl"
HELD_OUT = 3
"Every third conversation is not looked at while the extraction is developed."
SOON = 20
"Messages after a compaction."
SMALL = 1_000
"Tokens. Summaries of that size are reported apart: hundreds of values are needed after them."
PROBE_SHARE, PROBE_LEAST = 0.05, 300
CHAT_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
PROSE_SHARE = 0.4
"The least that prose may be of a summary: 60 % are for the values."
MODEL_MOST = 4_000
"Tokens."
PROSE = "The work went on as the user wished, and what was found on the way was told in good time. "

Line = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What the summaries of one kind carry."""

    what: str
    part: str
    "`dev` or `held-out`."
    summaries: int
    needed: int
    "Values that are needed later."
    whole: int
    "Of them, those that stand in the summary character for character."
    grouped: int
    "With the paths whose folder opens a line, and whose name stands behind it."
    values: float
    "The largest share of a summary's tokens that its lists of values take."
    over: int
    "How many of the summaries are longer than they may be."
    lacking: int
    "How many have no request, no decision or result, or do not mark what is open."


def main() -> None:
    options = parsed(sys.argv[1:])
    if not options.corpus.exists():
        sys.exit(f"No corpus at {options.corpus}. Name one with --corpus or LLM_COMPACT_CORPUS")
    lines = {line["id"]: line for line in read(options.corpus)}
    compactions = options.corpus.with_name(f"real_compactions.{options.corpus.name}")
    points = list(read(compactions)) if compactions.exists() else []
    rows: list[Row] = []
    for point in points:
        rows += real_compaction(point, lines[point["id"]], options)
    for line in lines.values():
        rows += future_probes(line, options)
    rows = summed(rows)
    chats = [line for line in lines.values() if line["family"] == "locomo"]
    evidence = {share: answerable(chats, share) for share in CHAT_SHARES} if chats else {}
    if options.json:
        told = {"counter": counter().name, "rows": [asdict(row) for row in rows]}
        print(json.dumps({**told, "evidence": evidence}, indent=2))
        return
    show(rows, evidence)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("LLM_COMPACT_CORPUS") or CORPUS)
    parser.add_argument("--corpus", type=Path, default=default, help="JSON lines")
    parser.add_argument("-m", "--model", help="also summarize with this model of llm's")
    parser.add_argument("--window", type=int, help="the context window of that model, in tokens")
    parser.add_argument(
        "--most",
        type=int,
        default=MODEL_MOST,
        help="of how many tokens that model summarizes a head at most: a small one takes an hour "
        "for a long one (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--wide", action="store_true", help="count what is said again, too")
    parser.add_argument("--missed", action="store_true", help="tell on stderr what is not carried")
    return parser.parse_args(arguments)


def read(path: Path) -> Iterator[Line]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def show(rows: Sequence[Row], evidence: dict[float, tuple[int, int]]) -> None:
    print(f"Tokens counted with {counter().name}.\n")
    names = ("n", "needed", "whole", "grouped", "lists", "over", "lacking")
    print(f"{'':40}{'':9}" + "".join(f"{name:>9}" for name in names))
    for row in rows:
        whole, grouped = row.whole / row.needed, row.grouped / row.needed
        print(
            f"{row.what:40}{row.part:9}{row.summaries:9}{row.needed:9}{whole:9.1%}{grouped:9.1%}"
            f"{row.values:9.0%}{row.over:9}{row.lacking:9}"
        )
    print("\nEvidence of questions about chats, in a context of so much of the conversation:")
    for share, (found, all_) in evidence.items():
        print(f"{share:5.0%} {found / all_:6.1%} of {all_}")


# -- what is measured --------------------------------------------------------


def real_compaction(point: Line, line: Line, options: argparse.Namespace) -> Iterator[Row]:
    """The summary that was written in this session, and ours of the same and of half the size."""
    messages = messages_of(line)
    at = point["at_message_index"]
    size = point["summary_tokens"]
    needed = {"": needed_after(messages, at, line["system"] or "")}
    if options.wide:
        needed[", again"] = needed_again(messages, at)
        needed[", soon"] = needed_soon(messages, at)
    told = " (small)" if size <= SMALL else ""
    rows = {
        f"{how}{told}": rower(line["id"], values, options.missed) for how, values in needed.items()
    }
    summaries = list(summaries_of_size(point, messages[:at], options))
    for how, row in rows.items():
        for what, summary, room, head in summaries:
            yield row(what + how, summary, room, head)


def summaries_of_size(
    point: Line, messages: Sequence[Message], options: argparse.Namespace
) -> Iterator[tuple[str, str, int, Head | None]]:
    """(what it is, the summary, its room, its head) for each summary at a point."""
    size = point["summary_tokens"]
    yield "its own summary", point["summary"], size, None
    for told, room in (("same size", size), ("half size", size // 2)):
        head = head_of(messages, room)
        yield f"extractive, {told}", summary_by("extractive", head), room, head
        prose = with_values(scripted(int(PROSE_SHARE * room)), head)
        yield f"prose without values, {told}", prose, room, head
        if options.model and head.tokens <= options.most:
            yield f"{options.model}, {told}", summary_by_model(options, head), room, head


def future_probes(line: Line, options: argparse.Namespace) -> Iterator[Row]:
    probes = (line.get("future_probes") or {}).get("probes")
    if not probes:
        return
    messages = messages_of(line)[: line["future_probes"]["kept_tail_from"]]
    tokens = sum(map(message_tokens, messages))
    room = max(PROBE_LEAST, int(PROBE_SHARE * tokens))
    head = head_of(messages, room)
    row = rower(line["id"], [probe["value"] for probe in probes], options.missed)
    yield row("future probes, extractive", summary_by("extractive", head), room, head)
    prose = with_values(scripted(int(PROSE_SHARE * room)), head)
    yield row("future probes, prose without values", prose, room, head)
    if options.model and head.tokens <= options.most:
        by_model = summary_by_model(options, head)
        yield row(f"future probes, {options.model}, short heads", by_model, room, head)
        yield row(
            "future probes, extractive, short heads", summary_by("extractive", head), room, head
        )


def answerable(chats: Iterable[Line], share: float) -> tuple[int, int]:
    """(found, all): evidence of a chat's questions that stands in a context of this size.

    A message is evidence by the words that it shares with the answer; it is found where a line
    of the context has them all.
    """
    found = total = 0
    for line in chats:
        messages = messages_of(line)
        tail = messages[-4:]
        room = int(share * sum(map(message_tokens, messages))) - sum(map(message_tokens, tail))
        summary = summary_by("extractive", head_of(messages[:-4], room))
        context = [clues(text) for text in [*summary.splitlines(), *map(text_of, tail)]]
        for question in line["qa"]:
            if question["category"] == "adversarial":
                continue
            answer = clues(str(question["answer"]))
            for index in question["evidence_message_indexes"]:
                shared = answer & clues(text_of(messages[index]))
                if shared:
                    total += 1
                    found += any(shared <= told for told in context)
    return found, total


def clues(text: str) -> frozenset[str]:
    return frozenset(w for w in re.findall(r"\w+", text.casefold()) if len(w) > 3 or w.isdigit())


def rower(id: str, needed: Sequence[str], missed: bool) -> Callable[..., Row]:
    part = "dev" if int(hashlib.sha1(id.encode()).hexdigest(), 16) % HELD_OUT else "held-out"

    def row(what: str, summary: str, room: int, head: Head | None = None) -> Row:
        whole = [value for value in needed if stands_in(value, summary)]
        grouped = [value for value in needed if stands_grouped(value, summary)]
        if missed and part == "dev":
            lacks = [value for value in needed if value not in grouped]
            print(f"{id[:30]} {what}: {len(grouped)}/{len(needed)} {lacks}", file=sys.stderr)
        tokens = count_text(summary)
        listed = share_of_lists(summary, head.language) if head else 0.0
        is_ours = head is not None and what.partition(",")[0] in ("extractive", "future probes")
        lacking = is_ours and "prose" not in what and lacks_a_section(summary, head)
        over = head is not None and tokens > room
        return Row(what, part, 1, len(needed), len(whole), len(grouped), listed, over, lacking)

    return row


def summed(rows: Iterable[Row]) -> list[Row]:
    sums: dict[tuple[str, str], Row] = {}
    for row in rows:
        for part in (row.part, "all"):
            old = sums.get((row.what, part), Row(row.what, part, 0, 0, 0, 0, 0.0, 0, 0))
            sums[row.what, part] = Row(
                row.what,
                part,
                old.summaries + 1,
                old.needed + row.needed,
                old.whole + row.whole,
                old.grouped + row.grouped,
                max(old.values, row.values),
                old.over + row.over,
                old.lacking + row.lacking,
            )
    return [row for key, row in sorted(sums.items(), key=lambda item: item[0][1]) if row.needed]


# -- summaries ---------------------------------------------------------------


def head_of(messages: Sequence[Message], room: int) -> Head:
    return Head(
        messages=messages,
        previous=None,
        originals=messages,
        tokens=sum(map(message_tokens, messages)),
        language=language_of(messages),
        room=room,
        most=room,
    )


def summary_by(name: str, head: Head) -> str:
    return get_summarizer(name).summarize(head, Watch()).text


def summary_by_model(options: argparse.Namespace, head: Head) -> str:
    """What would be stored; nothing where it would be refused."""
    summarizer = get_summarizer(options.model, window=options.window)
    try:
        answer = summarizer.summarize(head, Watch())
    except SummarizerError as ex:
        print(f"{options.model} {ex}", file=sys.stderr)
        return ""
    return with_values(with_quotes(with_rules(answer.text, head), head), head)


@cache
def scripted(tokens: int) -> str:
    """Prose of about so many tokens: the worst case, a model that tells no value at all."""
    prose = "## Done\n\n" + PROSE
    while count_text(prose + PROSE) <= tokens:
        prose += PROSE
    return prose.strip()


def share_of_lists(summary: str, language: str) -> float:
    said = words(language)
    lists = [
        lines for title, lines in sections_of(summary) if title in (said["files"], said["values"])
    ]
    size = count_text(summary)
    return sum(count_text("- " + line) for lines_ in lists for line in lines_) / max(1, size)


def lacks_a_section(summary: str, head: Head) -> bool:
    """Whether a summary has no request, no decision, or does not mark what is open."""
    said = words(head.language)
    titles = {title for title, _ in sections_of(summary)}
    if not {said["requests"], said["statements"]} <= titles:
        return True
    last = max(i for i, message in enumerate(head.messages) if message.role == "user")
    asked = head_of(head.messages[: last + 1], head.room)
    return f"({said['open']})" not in summary_by("extractive", asked)


# -- what is needed ----------------------------------------------------------

_CANDIDATE = re.compile(r"https?://[^\s\"'<>)\]`]+|[A-Za-z0-9_@#$€£%~./+-]+")
_AFFIX = ".,-+"


def needed_after(messages: Sequence[Message], at: int, system: str) -> list[str]:
    """The values known before a message that the assistant uses from there on by itself.

    What a user or a tool says again before that is not needed from the summary.
    """
    known = {value for message in messages[:at] for value in values_of(message)}
    said = values_in(system)
    needed: dict[str, None] = {}
    for message in messages[at:]:
        values = values_of(message)
        if message.role == "assistant":
            needed.update(dict.fromkeys(v for v in values if v in known and v not in said))
        said |= set(values)
    return list(needed)


def needed_again(messages: Sequence[Message], at: int) -> list[str]:
    """The values that people or the assistant used before a message, and the assistant after it.

    Whoever says them in between: what was used once goes on being used.
    """
    used = {v for message in messages[:at] if message.role != "tool" for v in values_of(message)}
    return used_by_assistant(messages[at:], used)


def needed_soon(messages: Sequence[Message], at: int) -> list[str]:
    """The values known before a message that the assistant uses in the next few messages."""
    known = {value for message in messages[:at] for value in values_of(message)}
    return used_by_assistant(messages[at : at + SOON], known)


def used_by_assistant(messages: Iterable[Message], known: set[str]) -> list[str]:
    used = (v for message in messages if message.role == "assistant" for v in values_of(message))
    return [value for value in dict.fromkeys(used) if value in known]


def values_of(message: Message) -> list[str]:
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ToolCallPart):
            texts += strings_in(part.arguments)
        elif isinstance(part, ToolResultPart):
            texts.append(part.output)
    return list(dict.fromkeys(value for text in texts for value in values_in(text)))


def strings_in(argument: Any) -> list[str]:
    if isinstance(argument, dict):
        return [text for value in argument.values() for text in strings_in(value)]
    if isinstance(argument, list):
        return [text for value in argument for text in strings_in(value)]
    return [str(argument)]


@cache
def values_in(text: str) -> frozenset[str]:
    stripped = (match.rstrip(_AFFIX) for match in _CANDIDATE.findall(text))
    return frozenset(value for value in stripped if is_value(value))


@cache
def is_value(text: str) -> bool:
    """Whether a run of characters is a path, a flag, an id, a number or an identifier."""
    if not 3 <= len(text) <= 200:
        return False
    digits, letters = sum(map(str.isdigit, text)), sum(map(str.isalpha, text))
    if "/" in text:
        names = text.strip("/").split("/")
        has_suffix = re.search(r"\w\.[a-z]\w{0,5}$", text)
        return letters > 3 and len(names) > 1 and bool(has_suffix or len(names) > 3)
    if text.startswith("--"):
        return letters > 3
    if digits and not letters:
        # Three digits are the number of a line, or chance.
        return digits >= 4 or bool(re.fullmatch(r"[$€£]\d+|\d+\.\d+%?", text))
    if digits:
        return digits >= 2 and len(text) >= 6
    has_hump = re.search("[a-z][A-Z]", text) is not None
    return len(text) >= 8 and (has_hump or "_" in text.strip("_"))


def stands_in(value: str, text: str) -> bool:
    edge = "[A-Za-z0-9_]"
    before = f"(?<!{edge})" if re.match(edge, value) else ""
    after = f"(?!{edge})" if re.match(edge, value[-1]) else ""
    return re.search(before + re.escape(value) + after, text) is not None


def stands_grouped(value: str, text: str) -> bool:
    """Whole, or as "folder/: ... name ..." in a line; "./a" is "a"."""
    value = value.removeprefix("./").rstrip("/")
    if stands_in(value, text):
        return True
    folder, slash, name = value.rpartition("/")
    opening = re.compile(rf"(?:^|[\s/]){re.escape(folder)}/: (.*)$", re.MULTILINE)
    return bool(slash) and any(name in names.split() for names in opening.findall(text))


# -- the corpus --------------------------------------------------------------


def messages_of(line: Line) -> list[Message]:
    return [message_of(message) for message in line["messages"]]


def message_of(message: Line) -> Message:
    parts: list[Any] = [TextPart(text=message["text"])] if message["text"] else []
    parts += [
        ToolCallPart(name=c["name"], arguments=c["arguments"], tool_call_id=c["id"])
        for c in message.get("tool_calls") or []
    ]
    parts += [
        ToolResultPart(name=r["name"], output=r["output"], tool_call_id=r["id"])
        for r in message.get("tool_results") or []
    ]
    return Message(role=message["role"], parts=parts)


def text_of(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


if __name__ == "__main__":
    main()
