"""Hypothesis strategies for conversations as llm stores them, valid ones and broken ones."""

from __future__ import annotations

import llm
from hypothesis import strategies as st
from llm.parts import (
    AttachmentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

TEXT = st.sampled_from(
    [
        "High water is at 06:15.",
        "café at `main`, {x} and $focus: 42 cm 🌊",
        "潮汐表在 docs/tides.md 里，高潮是早上六点十五分。",
        "満潮は何時ですか。밀물은 몇 시입니까?",
        "The tide table for Ribe gives a level of 1.5 m and it was measured twice. " * 12,
    ]
)
PICTURE = llm.Attachment(type="image/png", content=b"\x89PNG chart")


@st.composite
def conversations(draw: st.DrawFn, *, open_end: bool = True) -> list[Message]:
    """A valid chain of one to eight exchanges, perhaps with an end that waits for an answer."""
    chain: list[Message] = []
    if draw(st.booleans()):
        chain.append(Message(role="system", parts=[TextPart(text=draw(TEXT))]))
    # Some providers count the calls of each request anew: ids need not be unique in a chain.
    ids_are_unique = draw(st.booleans())
    for number in range(draw(st.integers(1, 8))):
        chain.append(draw(user_messages()))
        for round_number in range(draw(st.sampled_from([0, 0, 1, 2, 5]))):
            prefix = f"{number}-{round_number}-" if ids_are_unique else ""
            chain.extend(draw(rounds(prefix)))
        chain.extend(draw(answers()))
    if open_end:
        chain.extend(draw(open_ends()))
    return chain


@st.composite
def user_messages(draw: st.DrawFn) -> Message:
    parts = [TextPart(text=draw(TEXT))]
    kind = draw(st.sampled_from(["text", "text", "text", "both", "picture"]))
    if kind != "text":
        parts.append(AttachmentPart(attachment=PICTURE))  # type: ignore[arg-type]
    return Message(role="user", parts=parts[1:] if kind == "picture" else parts)


@st.composite
def rounds(draw: st.DrawFn, prefix: str) -> list[Message]:
    """An assistant message with tool calls, and the tool messages that answer them."""
    names = draw(st.lists(st.sampled_from(["lookup", "run"]), min_size=1, max_size=3))
    calls = [
        ToolCallPart(name=name, arguments={"q": draw(TEXT)}, tool_call_id=f"{prefix}{index}")
        for index, name in enumerate(names)
    ]
    results = [
        ToolResultPart(name=call.name, output=draw(TEXT), tool_call_id=call.tool_call_id)
        for call in calls
    ]
    parts = [*draw(thoughts()), *calls]
    messages = [Message(role="assistant", parts=parts)]
    if draw(st.booleans()):
        messages.append(Message(role="tool", parts=list(results)))
    else:
        messages.extend(Message(role="tool", parts=[result]) for result in results)
    if draw(st.sampled_from([False, False, True])):
        messages.append(Message(role="user", parts=[AttachmentPart(attachment=PICTURE)]))
    return messages


@st.composite
def thoughts(draw: st.DrawFn) -> list[object]:
    parts: list[object] = []
    if draw(st.sampled_from([False, False, True])):
        metadata = {"anthropic": {"signature": "abc"}}
        parts.append(ReasoningPart(text=draw(TEXT), provider_metadata=metadata))
    if draw(st.sampled_from([False, False, True])):
        search = {"name": "web_search", "tool_call_id": "srv", "server_executed": True}
        parts.append(ToolCallPart(arguments={"q": draw(TEXT)}, **search))
        parts.append(ToolResultPart(output=draw(TEXT), **search))
    if draw(st.booleans()):
        parts.append(TextPart(text=draw(TEXT)))
    return parts


@st.composite
def answers(draw: st.DrawFn) -> list[Message]:
    parts = [*draw(thoughts()), TextPart(text=draw(TEXT))]
    return [Message(role="assistant", parts=parts)]


@st.composite
def open_ends(draw: st.DrawFn) -> list[Message]:
    kind = draw(st.sampled_from(["closed", "closed", "asked", "answered by tools", "pending"]))
    if kind == "closed":
        return []
    messages = [draw(user_messages())]
    if kind != "asked":
        messages.extend(draw(rounds("open-")))
    return messages[:2] if kind == "pending" else messages


@st.composite
def broken_conversations(draw: st.DrawFn) -> list[Message]:
    """A chain from which messages are missing, or in which some stand twice."""
    chain = draw(conversations())
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(chain) - 1))
        if draw(st.booleans()) and len(chain) > 1:
            del chain[index]
        else:
            chain.insert(index, chain[index])
    return chain
