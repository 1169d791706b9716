"""A logged or live conversation as messages: its system prompt, its last summary, its exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm.parts import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

MARKER = "llm_compact"
"Key in a part's `provider_metadata` by which a compacted chain is recognized, never by its words."


@dataclass(frozen=True)
class Marker:
    """What the parts of a compacted chain's first messages say about their compaction."""

    generation: int
    "1 for the first compaction of a conversation, then 2, 3, ..."
    compaction: str
    "Id of the compaction, which is the id of its turn."
    head: int
    "How many original messages the summary stands for, over all generations."

    def of(self, part: Part) -> Part:
        """The same part, carrying this marker."""
        metadata = {
            **(getattr(part, "provider_metadata", None) or {}),
            MARKER: {
                "generation": self.generation,
                "compaction": self.compaction,
                "head": self.head,
            },
        }
        return replace(part, provider_metadata=metadata)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Summary:
    """The summary that a compacted conversation begins with."""

    text: str
    marker: Marker


@dataclass(frozen=True)
class History:
    """A conversation's messages, told apart."""

    system: tuple[Message, ...]
    "The system messages that it begins with: none or one, more only if the source had more."
    summary: Summary | None
    "Present if the conversation was compacted before."
    body: tuple[Message, ...]
    "Everything after that, in order."


def history_of(messages: Sequence[Message]) -> History:
    """Tell a chain's system prompt and earlier summary from the exchanges that follow."""
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    system, rest = tuple(messages[:start]), tuple(messages[start:])
    if len(rest) >= 2 and marker_of(rest[0]) and rest[1].role == "assistant":
        marker = marker_of(rest[1])
        if marker:
            return History(system, Summary(text_of(rest[1]), marker), rest[2:])
    return History(system, None, rest)


def marker_of(message: Message) -> Marker | None:
    """The compaction that a message belongs to, if it is one of the first messages of one."""
    for part in message.parts:
        found: Any = (getattr(part, "provider_metadata", None) or {}).get(MARKER)
        if isinstance(found, dict) and {"generation", "compaction", "head"} <= found.keys():
            return Marker(found["generation"], found["compaction"], found["head"])
    return None


def generation_of(messages: Sequence[Message]) -> int:
    """How many times a conversation was compacted: 0 if never.

    The newest compaction may be one without a summary, so each part may tell.
    """
    marks: Iterator[Any] = (
        (getattr(part, "provider_metadata", None) or {}).get(MARKER)
        for message in messages
        for part in message.parts
    )
    found = (mark.get("generation") for mark in marks if isinstance(mark, dict))
    return max((number for number in found if isinstance(number, int)), default=0)


def text_of(message: Message) -> str:
    """The text parts of a message, joined."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def compacted_chain(
    system: Sequence[Message], request: str, summary: str, tail: Sequence[Message], marker: Marker
) -> list[Message]:
    """The messages of a compacted conversation: system, request, summary, tail.

    The summary has the assistant's authority on purpose: what once stood in a tool's output
    must never come back as an order of the user's or the system's. The system message carries
    the marker too, so that the new conversation has a root of its own in llm's message tree.
    """
    return [
        *(replace(m, parts=[marker.of(part) for part in m.parts]) for m in system),
        Message(role="user", parts=[marker.of(TextPart(text=request))]),
        Message(role="assistant", parts=[marker.of(TextPart(text=summary))]),
        *tail,
    ]


def is_request(messages: Sequence[Message], index: int) -> bool:
    """Whether an exchange starts here: a user message that is more than what a tool returned.

    llm puts the attachments that tools return into a user message behind the tool message.
    """
    message = messages[index]
    if message.role != "user":
        return False
    returned_by_tools = (
        index > 0
        and messages[index - 1].role == "tool"
        and bool(message.parts)
        and all(isinstance(part, AttachmentPart) for part in message.parts)
    )
    return not returned_by_tools


def requests(messages: Sequence[Message]) -> list[int]:
    """Indexes of the user messages that start an exchange."""
    return [index for index in range(len(messages)) if is_request(messages, index)]


def is_open(messages: Sequence[Message]) -> bool:
    """Whether the last exchange still waits for an answer, a tool's or the assistant's."""
    if not messages:
        return False
    last = messages[-1]
    return last.role != "assistant" or bool(local_calls(last))


def local_calls(message: Message) -> list[ToolCallPart]:
    """The tool calls of a message that need a tool message; the provider answers its own."""
    return [
        part
        for part in message.parts
        if isinstance(part, ToolCallPart) and not part.server_executed
    ]


@dataclass(frozen=True)
class AnsweredCall:
    """A tool call and its result, with the indexes of the messages that they are in."""

    call_index: int
    call: ToolCallPart
    result_index: int
    result: ToolResultPart


def answered_calls(messages: Sequence[Message]) -> list[AnsweredCall]:
    """Each local call that was answered, in the order of the results.

    Ids may be used again in later rounds: a result belongs to the oldest call of its id that
    waits. Calls from before ids were guaranteed are matched by name, as llm does.
    """
    waiting: dict[tuple[str | None, str], list[tuple[int, ToolCallPart]]] = {}
    answered = []
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolResultPart) and not part.server_executed:
                calls = waiting.get(_key(part.tool_call_id, part.name))
                if calls:
                    answered.append(AnsweredCall(*calls.pop(0), index, part))
        for call in local_calls(message):
            waiting.setdefault(_key(call.tool_call_id, call.name), []).append((index, call))
    return answered


def _key(tool_call_id: str | None, name: str) -> tuple[str | None, str]:
    return (tool_call_id, "") if tool_call_id else (None, name)


def without_reasoning(messages: Sequence[Message]) -> list[Message]:
    """The messages as they may be sent behind a summary.

    Providers bind reasoning to what came before it, and that is gone. An exchange that is still
    open keeps its reasoning, because providers demand it back with the tool results.
    """
    starts = requests(messages)
    open_from = len(messages)
    if is_open(messages):
        open_from = starts[-1] if starts else 0
    return [
        _drop_reasoning(message) if index < open_from else message
        for index, message in enumerate(messages)
    ]


def _drop_reasoning(message: Message) -> Message:
    parts = [part for part in message.parts if not isinstance(part, ReasoningPart)]
    # A message of nothing but reasoning stays: without it two user messages would meet.
    return replace(message, parts=parts) if parts and len(parts) < len(message.parts) else message
