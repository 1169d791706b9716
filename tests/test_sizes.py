"""Sizes of the messages of short and long conversations."""

from __future__ import annotations

from unittest.mock import patch

import llm
import pytest
from conversations import broken_conversations, conversations
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import Message, ToolCallPart, ToolResultPart

from llm_compact.sizes import COUNTED, SAMPLE, message_sizes
from llm_compact.tokens import MESSAGE_TOKENS, content_of, message_tokens
from llm_compact.vocabulary import Counter


def long_conversation(exchanges: int) -> list[Message]:
    """Prose, calls with arguments, logs and other scripts, each with lengths of their own."""
    messages: list[Message] = []
    for n in range(exchanges):
        call = ToolCallPart(
            name="read", arguments={"path": f"src/tides/level_{n}.py", "limit": n}, tool_call_id="1"
        )
        log = "\n".join(
            f'{{"id": {n * 7919 % 9973}, "level_cm": {k}.{n}, "ok": null}}' for k in range(n % 40)
        )
        asked = (
            "今天的高潮时间是早上六点十五分，水位一米五。" if n % 5 == 0 else "When is it high? "
        )
        said = "High water comes half an hour later each day, and nobody has told the harbour. "
        messages += [
            llm.user(asked * (1 + n % 7)),
            llm.assistant(call),
            llm.tool_message(ToolResultPart(name="read", output=log, tool_call_id="1")),
            llm.assistant(said * (1 + n % 11)),
        ]
    return messages


@given(conversations() | broken_conversations())
def test_each_message_of_a_short_conversation_is_counted(messages: list[Message]) -> None:
    assert message_sizes(messages) == list(map(message_tokens, messages))


def test_the_newest_messages_of_a_long_conversation_are_counted() -> None:
    messages = long_conversation(400)
    newest, length = len(messages), 0
    while length + characters(messages[newest - 1]) <= COUNTED:
        newest -= 1
        length += characters(messages[newest])

    sizes = message_sizes(messages)

    assert 0 < newest < len(messages) - 50
    assert sizes[newest:] == list(map(message_tokens, messages[newest:]))


def test_what_the_old_messages_have_in_sum_is_near_the_count() -> None:
    messages = long_conversation(800)
    counted = list(map(message_tokens, messages))

    sizes = message_sizes(messages)

    assert sum(sizes) == pytest.approx(sum(counted), rel=0.02)
    quarter = len(messages) // 4
    for start in range(0, len(messages), quarter):
        part = slice(start, start + quarter)
        assert sum(sizes[part]) == pytest.approx(sum(counted[part]), rel=0.05)


def test_a_document_in_a_long_conversation_has_its_own_rate() -> None:
    messages = long_conversation(300)
    keys = " ".join(f"{n * 2654435761 % 2**32:08x}" for n in range(20_000))
    messages.insert(8, llm.user(keys))

    size = message_sizes(messages)[8]

    assert size == pytest.approx(message_tokens(messages[8]), rel=0.05)


@pytest.mark.parametrize("exchanges", [300, 3_000])
def test_no_more_is_counted_of_a_longer_conversation(exchanges: int) -> None:
    messages = long_conversation(exchanges)
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    with patch("llm_compact.tokens.counter", lambda: Counter("characters", count)):
        message_sizes(messages)

    assert sum(map(len, counted)) < 1.5 * (COUNTED + SAMPLE)


@given(
    st.lists(conversations() | broken_conversations(), max_size=3),
    st.integers(0, 2_000),
    st.integers(1, 2_000),
)
def test_whatever_is_sampled_each_message_has_a_size(
    chains: list[list[Message]], counted: int, sample: int
) -> None:
    messages = [message for chain in chains for message in chain]

    with patch.multiple("llm_compact.sizes", COUNTED=counted, SAMPLE=sample, BLOCK=100):
        sizes = message_sizes(messages)
        again = message_sizes(messages)

    assert len(sizes) == len(messages)
    assert all(size >= MESSAGE_TOKENS for size in sizes)
    assert sizes == again


def test_a_text_that_can_not_be_encoded_has_a_size() -> None:
    messages = [llm.user("\udfff" * 1_000), *long_conversation(300), llm.user("\ud800")]

    assert message_sizes(messages)[0] > MESSAGE_TOKENS


def characters(message: Message) -> int:
    return sum(len(text) for _, text in content_of(message).texts)
