"""What stands in for a large old tool result, and the way back from it: pure functions.

Most of an agent's conversation is what tools printed, and most of that is never needed again. To
leave it out costs no model call and little else ("The Complexity Trap", arXiv 2508.21433).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from llm.parts import Message, Part, ToolCallPart, ToolResultPart

from .conversation import MARKER, answered_calls, without_reasoning
from .facts import error_lines
from .tokens import count_text

PRUNE_TOOLS = "prune-tools"
"What stands in the log in the place of a summarizer."

LARGE = 200
"Tokens. A smaller result is not worth a placeholder."
LEAST_GAIN = 2
"A placeholder has to be so many times smaller than what it stands for."
END_BYTES = 200
"How much of the beginning and of the end of an output is kept."
ERROR_LINES, ERROR_CHARACTERS = 8, 160
"How many of the errors in between are kept, and how much of each."
CALL_CHARACTERS, ARGUMENT_CHARACTERS = 160, 60
"How much is told of a call and of each argument: the call itself stays in the conversation."


@dataclass(frozen=True)
class Pruning:
    """What each placeholder says about the compaction that it is of."""

    generation: int
    compaction: str
    "Id of the compaction, which is the id of its turn."
    is_logged: bool = True
    "Whether the original can be found in the log afterwards."


def pruned(
    messages: Sequence[Message], hashes: Sequence[str], until: int, pruning: Pruning
) -> list[Message]:
    """The messages with a placeholder for each large tool result before the index `until`.

    `hashes` are those of the messages in llm's log. It is all of them, not as many as are needed:
    each time, a provider's cache of the conversation is lost from the first placeholder on, and
    what follows stands in the log once more. So it should happen seldom, and then be worth it.

    Nothing else changes, except that the first message carries a mark, and that reasoning behind
    the first placeholder is dropped as it is behind a summary. What a provider ran itself is left
    alone: it checks these results.
    """
    calls = {id(each.result): each.call for each in answered_calls(messages)}
    result = list(messages)
    for index in range(until):
        message = messages[index]
        if message.role == "tool":
            parts = [_pruned(part, calls, hashes[index], pruning) for part in message.parts]
            if any(new is not old for new, old in zip(parts, message.parts, strict=True)):
                result[index] = replace(message, parts=parts)
    first = next((i for i in range(until) if result[i] is not messages[i]), None)
    if first is None:
        return result
    begun = [_begun(message, pruning) for message in _beginning(result[:first])]
    return [*begun, *result[len(begun) : first], *without_reasoning(result[first:])]


def _beginning(messages: Sequence[Message]) -> Sequence[Message]:
    """The system prompt and the first message after it."""
    system = sum(1 for _ in takewhile(lambda message: message.role == "system", messages))
    return messages[: system + 1]


def _begun(message: Message, pruning: Pruning) -> Message:
    """A message that a pruned conversation begins with, so that its beginning tells what it is.

    To look for placeholders in all of its messages would cost each call of a model too much.
    """
    if message.role == "system":
        return message
    return replace(message, parts=[_marked(part, pruning) for part in message.parts])


def _marked(part: Part, pruning: Pruning, **more: str) -> Part:
    metadata = getattr(part, "provider_metadata", None) or {}
    mark = {"compaction": pruning.compaction, "generation": pruning.generation, **more}
    # A summary's mark tells more, and stays.
    return replace(part, provider_metadata={MARKER: mark, **metadata})  # type: ignore[call-arg]


def restored(
    messages: Sequence[Message], original_of: Callable[[str], Message | None]
) -> list[Message]:
    """The messages with the original outputs, as far as `original_of` knows their hashes."""
    return [_restored(message, original_of) for message in messages]


def restored_from(messages: Sequence[Message], originals: Sequence[Message]) -> list[Message]:
    """The messages with the original outputs, where the originals end with the same messages."""
    # Where the log lacks some, they still end alike.
    number = min(len(originals), len(messages))
    pairs = zip(
        messages[len(messages) - number :], originals[len(originals) - number :], strict=True
    )
    known = {hash: original for message, original in pairs for hash in pruned_hashes([message])}
    return restored(messages, known.get)


def pruned_hash(part: Part) -> str | None:
    """Hash of the message with the original, if this part is a placeholder."""
    found: Any = (getattr(part, "provider_metadata", None) or {}).get(MARKER)
    return found.get("pruned") if isinstance(found, dict) else None


def pruned_hashes(messages: Sequence[Message]) -> list[str]:
    """The hashes of all messages with an original, in the order of the placeholders."""
    found = (pruned_hash(part) for message in messages for part in message.parts)
    return list(dict.fromkeys(hash for hash in found if hash))


def _restored(message: Message, original_of: Callable[[str], Message | None]) -> Message:
    if not any(map(_is_marked, message.parts)):
        return message
    parts = []
    for position, part in enumerate(message.parts):
        hash = pruned_hash(part)
        parts.append(_original_part(part, original_of(hash) if hash else None, position))
    return replace(message, parts=parts)


def _is_marked(part: Part) -> bool:
    """Whether a part carries a mark of this module, and not that of a summary."""
    mark: Any = (getattr(part, "provider_metadata", None) or {}).get(MARKER)
    return isinstance(mark, dict) and "head" not in mark


def _unmarked(part: Part) -> Part:
    metadata = dict(getattr(part, "provider_metadata", None) or {})
    del metadata[MARKER]
    return replace(part, provider_metadata=metadata or None)  # type: ignore[call-arg]


def _original_part(part: Part, original: Message | None, position: int) -> Part:
    if _is_marked(part) and not pruned_hash(part):
        return _unmarked(part)
    if original is None or position >= len(original.parts):
        return part
    found = original.parts[position]
    is_same = (
        isinstance(part, ToolResultPart)
        and isinstance(found, ToolResultPart)
        and found.tool_call_id == part.tool_call_id
    )
    return found if is_same and not pruned_hash(found) else part


def _pruned(part: Part, calls: Mapping[int, ToolCallPart], hash: str, pruning: Pruning) -> Part:
    if not isinstance(part, ToolResultPart) or part.server_executed or pruned_hash(part):
        return part
    text = placeholder(part, calls.get(id(part)), is_logged=pruning.is_logged)
    if text is None:
        return part
    return _marked(replace(part, output=text), pruning, pruned=hash)


def placeholder(
    result: ToolResultPart, call: ToolCallPart | None, *, is_logged: bool
) -> str | None:
    """The call, how the output begins and ends, the errors between, and how much is left out.

    None where that would not be less than half of the output.
    """
    output = result.output
    # A token is at least a byte: what is short needs no counting.
    if len(output.encode("utf-8", "replace")) <= max(LARGE, 2 * END_BYTES):
        return None
    tokens = count_text(output)
    if tokens <= LARGE:
        return None
    first, between, last = _ends(output)
    left_out = tokens - count_text(first) - count_text(last)
    if not between or left_out <= 0:
        return None
    where = "; the original is in the log" if is_logged else ""
    text = "\n".join(
        [
            f"[{_shown_call(result, call)}]",
            *([first] if first else []),
            f"[… {_amount(between)} ({left_out:,} tokens) left out by llm-compact{where}]",
            *_errors(output, first, last),
            *([last] if last else []),
        ]
    )
    is_worth_it = LEAST_GAIN * count_text(text) <= tokens and len(text) < len(output)
    return text if is_worth_it else None


def _ends(output: str) -> tuple[str, str, str]:
    """Beginning, middle and end, parted between lines where that does not take too much away."""
    start = _within(output[:END_BYTES])
    end = len(output) - _within(output[-END_BYTES:])
    line = output.rfind("\n", start // 2, start)
    start = line if line > 0 else start
    line = output.find("\n", end, end + (len(output) - end) // 2)
    end = line + 1 if line > 0 else end
    return output[:start].strip("\n"), output[start:end].strip("\n"), output[end:].strip("\n")


def _within(piece: str) -> int:
    """How many characters of a piece take about as many bytes as may be kept."""
    return END_BYTES * len(piece) // max(END_BYTES, len(piece.encode("utf-8", "replace")))


def _amount(text: str) -> str:
    lines = text.count("\n") + 1
    return f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"


def _errors(output: str, first: str, last: str) -> list[str]:
    kept = [" ".join(line.split()) for line in f"{first}\n{last}".splitlines()]
    lines = (line[:ERROR_CHARACTERS] for line in error_lines(output) if line not in kept)
    return list(dict.fromkeys(lines))[:ERROR_LINES]


def _shown_call(result: ToolResultPart, call: ToolCallPart | None) -> str:
    arguments = ", ".join(
        f"{name}={_shortened(json.dumps(value, ensure_ascii=False), ARGUMENT_CHARACTERS)}"
        for name, value in (call.arguments if call else {}).items()
    )
    return f"{result.name}({_shortened(arguments, CALL_CHARACTERS)})"


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
