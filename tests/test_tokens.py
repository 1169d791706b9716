"""Sizes and counts."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, Talk
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import AttachmentPart, ReasoningPart, ToolCallPart, ToolResultPart
from oracle import count_tokens
from scripted import Plugin, Reply

import llm_compact
from llm_compact import vocabulary
from llm_compact.estimate import estimate
from llm_compact.log import open_log
from llm_compact.source import read_source
from llm_compact.tokens import (
    ATTACHMENT_TOKENS,
    MESSAGE_TOKENS,
    Calibration,
    Reported,
    Size,
    calibrate,
    count_text,
    message_tokens,
    parse_keep,
    parse_size,
    parse_threshold,
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
    "text, threshold",
    [
        ("100k", Size(100_000, "tokens")),
        ("100000", Size(100_000, "tokens")),
        ("100", Size(100, "tokens")),
        ("70%", Size(70, "%")),
        ("100%", Size(100, "%")),
        ("20m", Size(20, "messages")),
        ("10x", Size(10, "exchanges")),
        ("off", None),
        (" OFF ", None),
    ],
)
def test_a_threshold(text: str, threshold: Size | None) -> None:
    assert parse_threshold(text) == threshold


@pytest.mark.parametrize(
    "text, told",
    [
        ("70", "Use 70% (of the context window), 70k (tokens), 70m (messages) or 70x (exchanges)"),
        ("0.05k", "is only 50 tokens"),
        ("101%", "is more than the context window. Use 70%, or 100k (tokens)"),
        ("on", "20m (messages), 10x (exchanges) or off"),
        ("0", "is no threshold"),
        ("", "is no threshold"),
        ("-70%", "is no threshold"),
    ],
)
def test_what_is_no_threshold_says_what_is_one(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_threshold(text)


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

    assert plain == MESSAGE_TOKENS + count_text(text)
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


@pytest.fixture
def no_encoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A disk without any vocabulary. Returns tiktoken's cache directory, which is empty."""
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


class FakeTiktoken:
    """One token a character; remembers being asked, which the real one may answer by a download."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        monkeypatch.setitem(sys.modules, "tiktoken", self)  # type: ignore[arg-type]

    def get_encoding(self, name: str) -> Any:
        self.asked.append(name)
        return SimpleNamespace(encode_ordinary=list)


CACHE_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"


def test_tiktoken_is_not_asked_while_its_vocabulary_is_not_on_the_disk(
    no_encoding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiktoken = FakeTiktoken(monkeypatch)

    assert vocabulary.find_counter().name == "estimate"
    (no_encoding / CACHE_FILE).write_bytes(b"a download that was cut off")
    assert vocabulary.find_counter().name == "estimate"
    assert (no_encoding / CACHE_FILE).exists()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # it would download each time
    assert vocabulary.find_counter().name == "estimate"
    assert tiktoken.asked == []


@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"])
def test_tiktoken_counts_where_its_vocabulary_is_on_the_disk(
    variable: str, no_encoding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiktoken = FakeTiktoken(monkeypatch)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    monkeypatch.setenv(variable, str(no_encoding))
    (no_encoding / CACHE_FILE).write_bytes(b"the vocabulary")
    whole = hashlib.sha256(b"the vocabulary").hexdigest()
    monkeypatch.setattr(vocabulary, "_SHA256", whole)

    counter = vocabulary.find_counter()

    assert (counter.name, counter.count("x" * 30_000)) == ("tiktoken", 30_000)
    assert tiktoken.asked == ["o200k_base"]


def test_an_installed_offline_encoding_is_preferred(
    no_encoding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = SimpleNamespace(encode_ordinary=str.split)
    offline = SimpleNamespace(get_encoding=lambda name: encoding)
    monkeypatch.setitem(sys.modules, "bpe_openai", offline)  # type: ignore[arg-type]

    counter = vocabulary.find_counter()

    assert (counter.name, counter.count("high water at six")) == ("bpe-openai", 4)


def test_the_real_offline_encoding_is_exact_however_long_the_text() -> None:
    pytest.importorskip("bpe_openai")
    count = vocabulary.find_counter().count

    assert count("The quick brown fox jumps over the lazy dog. " * 20) == 201
    assert count("a" * 2_000_000) == 250_000
    assert count("\ud800") >= 1
    assert count("<|endoftext|>") > 1


@given(st.text(st.sampled_from("ab \n漢"), max_size=200), st.integers(0, 200))
def test_a_long_text_is_counted_in_pieces_that_are_all_of_it(text: str, times: int) -> None:
    pieces = list(vocabulary.chunks(text * times))

    assert "".join(pieces) == text * times
    assert all(len(piece) <= 8_000 for piece in pieces)


def reports(sizes: list[int], factor: float = 1.0, overhead: int = 0) -> list[Reported]:
    """What a provider reports that counts so, for user and assistant messages in turn."""
    before = [0, *accumulate(sizes)]
    return [
        Reported(
            sent, round(overhead + factor * before[sent]), sent + 1, round(factor * sizes[sent])
        )
        for sent in range(1, len(sizes), 2)
    ]


SIZES = [100, 400, 50, 300, 700, 200, 90, 1_000, 30, 600]


def test_without_a_report_our_own_count_stands() -> None:
    calibration = calibrate(SIZES, [])

    assert calibration == Calibration()
    assert calibration.conversation(SIZES) == sum(SIZES)


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.3, 1.9])
@pytest.mark.parametrize("overhead", [0, 20_000])
def test_a_providers_way_to_count_is_learned(factor: float, overhead: int) -> None:
    calibration = calibrate(SIZES, reports(SIZES, factor, overhead))

    assert calibration.factor == pytest.approx(factor, rel=0.01)
    assert calibration.overhead == pytest.approx(overhead, abs=10)


def test_what_was_counted_is_not_counted_again() -> None:
    reported = reports(SIZES, 1.5, 2_000)[:3]
    counted = reported[-1].input + (reported[-1].output or 0)

    calibration = calibrate(SIZES, reported)

    assert calibration.conversation(SIZES) == counted + round(1.5 * sum(SIZES[6:]))


def test_an_answer_without_a_count_is_counted_here() -> None:
    reported = [Reported(1, 100, 2, None)]

    assert calibrate([100, 400], reported).conversation([100, 400]) == 500


def test_one_odd_turn_changes_nothing() -> None:
    reported = reports(SIZES, 1.2)
    reported[2] = Reported(5, reported[2].input + 900, 6, 240)  # a picture that was sent once

    assert calibrate(SIZES, reported).factor == pytest.approx(1.2, rel=0.01)


def test_reports_of_less_than_the_conversation_are_not_believed() -> None:
    # A server that reports what it had not cached, an adapter that sends the last message only.
    few = [Reported(sent, 120, sent + 1, 30) for sent in range(1, 10, 2)]

    assert calibrate(SIZES, few) == Calibration()


@given(
    st.lists(st.integers(1, 5_000), min_size=2, max_size=30),
    st.lists(st.integers(0, 100_000), min_size=15, max_size=15),
    st.data(),
)
def test_a_part_of_a_conversation_is_never_more_than_all_of_it(
    sizes: list[int], inputs: list[int], data: st.DataObject
) -> None:
    reported = [
        Reported(sent, inputs[sent // 2], sent + 1, sizes[sent]) for sent in range(1, len(sizes), 2)
    ]
    calibration = calibrate(sizes, reported)
    part = data.draw(st.integers(0, sum(sizes)))

    assert 0.5 <= calibration.factor <= 2
    assert calibration.overhead >= 0
    whole = calibration.conversation(sizes)
    assert calibration.overhead + calibration.tokens(part) <= whole + len(sizes)


Run = Callable[..., Result]


@pytest.fixture
def reported_talk(talk: Talk) -> str:
    """Six exchanges; the provider counts 1.5 tokens for one of ours, and 1,000 for its tools."""
    exchanges, plain = [], MESSAGE_TOKENS + count_text("You know the tides.")
    for n, place in enumerate(["Esbjerg", "Nuuk", "Torshavn", "Ribe", "Hvide Sande", "Skagen"]):
        question, answer = f"When was high water in {place}?", LONG.format(place=place, n=n)
        plain += MESSAGE_TOKENS + count_text(question)
        output = MESSAGE_TOKENS + count_text(answer)
        usage = (round(1_000 + 1.5 * plain), round(1.5 * output))
        exchanges.append((question, [Reply(answer, usage=usage)]))
        plain += output
    return talk(exchanges, system="You know the tides.")


def test_a_compaction_counts_as_the_provider_does(reported_talk: str, log: Log, run: Run) -> None:
    turn = list(log.db["turns"].rows_where(order_by="id"))[-1]
    dry_run = json.loads(run("compact", "-c", "--dry-run", "--json").stdout)

    compaction = llm_compact.compact(model="extractive")

    stored = log.messages(compaction.id)
    assert compaction.tokens_before == turn["input_tokens"] + turn["output_tokens"]
    assert compaction.tokens_after == pytest.approx(1_000 + 1.5 * count_tokens(stored), abs=6)
    assert compaction.summary_tokens == pytest.approx(1.5 * count_text(compaction.summary), abs=3)
    assert dry_run["tokens_before"] == compaction.tokens_before
    assert dry_run["counted_by"].startswith("provider and ")


def test_the_usage_of_a_compaction_is_not_the_conversations(
    reported_talk: str, models: Plugin, log: Log
) -> None:
    summary = "## Current state\n- High water everywhere is at six, read in the tide table."
    models.summer.replies = [Reply(summary, usage=(90_000, 45_000))]
    compaction = llm_compact.compact(model="summer")

    with open_log(log.path) as db:
        source = read_source(db, compaction.id)

    assert source.reported == ()


def test_cached_tokens_count_and_hidden_reasoning_does_not(reported_talk: str, log: Log) -> None:
    def report_with(details: dict[str, Any]) -> Reported:
        turn = list(log.db["turns"].rows_where(order_by="id"))[-1]["id"]
        usage = {"input_tokens": 500, "output_tokens": 80, "token_details": json.dumps(details)}
        log.db["turns"].update(turn, usage)
        with open_log(log.path) as db:
            return read_source(db, reported_talk).reported[-1]

    anthropic = {"cache_creation_input_tokens": 30, "cache_read_input_tokens": 4_000}
    openai = {"prompt_tokens_details": {"cached_tokens": 400}}
    assert report_with(anthropic).input == 4_530
    assert report_with(openai).input == 500
    # A proxy that names them in both ways counts them once.
    assert report_with({**anthropic, **openai}).input == 500
    assert report_with({"completion_tokens_details": {"reasoning_tokens": 64}}).output == 16
    assert report_with({"output_tokens_details": {"reasoning_tokens": 64}}).output == 16
    assert report_with({"thoughtsTokenCount": 64}).output == 16


def test_a_fork_knows_what_was_reported_before_it(reported_talk: str, log: Log) -> None:
    tip = log.store.thread_tip(reported_talk)
    fork = log.store.fork(tip, forked_from=reported_talk)

    with open_log(log.path) as db:
        turn = list(db["turns"].rows_where(order_by="id"))[-1]
        db["turns"].insert({**turn, "id": "zzz", "thread_id": fork, "input_tokens": 7_777})
        source = read_source(db, fork)

    assert [report.sent for report in source.reported] == [2, 4, 6, 8, 10, 12, 12]
    assert source.reported[-1].input == 7_777
