"""Sizes and counts."""

from __future__ import annotations

import llm
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import AttachmentPart, ReasoningPart, ToolCallPart, ToolResultPart

from llm_compact.estimate import estimate
from llm_compact.tokens import (
    ATTACHMENT_TOKENS,
    MESSAGE_TOKENS,
    Size,
    count_tokens,
    message_tokens,
    parse_keep,
    parse_size,
)


@pytest.mark.parametrize(
    "text, size",
    [
        ("8k", Size(8_000, "tokens")),
        ("8K", Size(8_000, "tokens")),
        ("1.5k", Size(1_500, "tokens")),
        ("100000", Size(100_000, "tokens")),
        ("100,000", Size(100_000, "tokens")),
        ("70%", Size(70, "%")),
        ("6m", Size(6, "messages")),
        ("2x", Size(2, "exchanges")),
        (" 2x ", Size(2, "exchanges")),
        ("50", Size(50, "tokens")),
    ],
)
def test_a_size(text: str, size: Size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "x", "k", "0", "0x", "-1", "1.5x", "2y", "2 k x", "1e3", "٣x"]
)
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(1, 10**7), st.sampled_from(["tokens", "%", "messages", "exchanges"]))
def test_a_size_is_written_as_it_is_read(value: int, unit: str) -> None:
    size = Size(value, unit)  # type: ignore[arg-type]
    assert parse_size(str(size)) == size


def test_a_few_are_exchanges_where_something_is_kept() -> None:
    assert parse_keep("2") == Size(2, "exchanges")
    assert parse_keep("99") == Size(99, "exchanges")
    assert parse_keep("100") == Size(100, "tokens")
    assert parse_keep("2m") == Size(2, "messages")


# True counts of o200k_base.
@pytest.mark.parametrize(
    "text, tokens",
    [
        ("The quick brown fox jumps over the lazy dog. " * 20, 201),
        ("def high_water(station: str) -> float:\n    return LEVELS[station].max()\n" * 20, 400),
        ('{"id": 17, "level_cm": 153.2, "quality": null, "tags": ["a", "b"]}\n' * 20, 580),
        ("550e8400-e29b-41d4-a716-446655440000\n" * 20, 380),
        ("今天的高潮时间是早上六点十五分，水位一米五。" * 20, 360),
        ("満潮は午前六時十五分で、水位は一メートル五十です。" * 20, 420),
        ("오늘 만조는 오전 여섯 시 십오 분이고 수위는 일 미터 오십입니다. " * 20, 481),
        ("Yarın gelgit saat altıda başlayacak ve su bir buçuk metre yükselecek. " * 20, 401),
        ("Das Hochwasser kommt morgen früh um sechs Uhr fünfzehn in Esbjerg an. " * 20, 361),
        ("Завтра прилив начнётся в шесть часов пятнадцать минут утра. " * 20, 342),
    ],
    ids=["english", "code", "json", "uuid", "zh", "ja", "ko", "tr", "de", "ru"],
)
def test_an_estimate_is_near_the_true_count(text: str, tokens: int) -> None:
    assert abs(estimate(text) - tokens) <= 0.3 * tokens


def test_nothing_is_nothing_and_something_is_something() -> None:
    assert estimate("") == 0
    assert all(estimate(text) >= 1 for text in ("a", " ", "\n", "\x00", "潮", "\ud800"))


def test_a_message_counts_with_all_that_is_in_it() -> None:
    text = "The tide is high. " * 10
    picture = llm.Attachment(type="image/png", content=b"x" * 1_000_000)
    plain = message_tokens(llm.assistant(text))

    assert plain == MESSAGE_TOKENS + estimate(text)
    assert message_tokens(llm.assistant(ReasoningPart(text=text))) == plain
    call = ToolCallPart(name="lookup", arguments={"q": text})
    assert message_tokens(llm.assistant(call)) > plain
    result = ToolResultPart(name="lookup", output=text, attachments=[picture])
    assert message_tokens(llm.tool_message(result)) == plain + MESSAGE_TOKENS + ATTACHMENT_TOKENS
    # Not a token for each character of its base64.
    assert message_tokens(llm.user(AttachmentPart(attachment=picture))) == (
        MESSAGE_TOKENS + ATTACHMENT_TOKENS
    )
    assert count_tokens([llm.user(text), llm.user(text)]) == 2 * plain
