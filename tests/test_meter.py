"""A request is counted as it grows, each message once."""

from __future__ import annotations

import llm
import pytest
from conversations import conversations
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import Message
from oracle import count_tokens

from llm_compact import meter as meter_module
from llm_compact.meter import Meter
from llm_compact.tokens import Calibration, Reported

QUESTION = llm.user("When was high water in Ribe?")
ANSWER = llm.assistant("High water was at 06:15 with 1.5 m above the chart datum.")


def exchanges(count: int) -> list[Message]:
    return [QUESTION, ANSWER] * count


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """The messages that were counted, in order."""
    messages: list[Message] = []

    def message_tokens(message: Message) -> int:
        messages.append(message)
        return count_tokens([message])

    monkeypatch.setattr(meter_module, "message_tokens", message_tokens)
    return messages


def test_each_message_is_counted_once(counted: list[Message]) -> None:
    meter = Meter()

    for length in range(1, 401):
        meter.tokens(exchanges(200)[:length])
        meter.tokens(exchanges(200)[:length])

    assert len(counted) == 400


def test_without_a_report_it_is_the_plain_count() -> None:
    assert Meter().tokens(exchanges(3)) == count_tokens(exchanges(3))
    assert Meter(Calibration(1.5, 100)).tokens(exchanges(3)) == 100 + round(
        1.5 * count_tokens(exchanges(3))
    )


def test_what_the_provider_has_counted_is_not_counted_again() -> None:
    meter = Meter()
    meter.tokens([QUESTION])
    meter.report([Reported(sent=1, input=14, answered=2, output=23)])

    assert meter.tokens([QUESTION, ANSWER, QUESTION]) == pytest.approx(
        14 + 23 + count_tokens([QUESTION]), abs=5
    )


def test_a_restart_forgets_the_messages_and_not_how_the_provider_counts() -> None:
    meter = Meter()
    sizes = [count_tokens(exchanges(10)[:n]) for n in range(21)]
    for n in range(1, 19, 2):
        meter.tokens(exchanges(10)[:n])
        meter.report([Reported(n, 2 * sizes[n], n + 1, 2 * (sizes[n + 1] - sizes[n]))])
    meter.tokens(exchanges(10)[:19])

    meter.restart()

    assert meter.tokens(exchanges(2)) == pytest.approx(2 * sizes[4], rel=0.05)


def test_another_answer_to_the_same_request_is_measured_like_the_first() -> None:
    meter = Meter()
    first = meter.tokens([QUESTION])
    meter.report([Reported(sent=1, input=first, answered=2, output=25)])

    assert meter.tokens([QUESTION]) == first


def test_an_edited_conversation_is_counted_anew() -> None:
    meter = Meter()
    meter.tokens(exchanges(4))
    edited = [*exchanges(1), llm.user("No, in Skagen!"), *exchanges(2)[1:]]

    assert meter.tokens(edited[:3]) == count_tokens(edited[:3])
    assert meter.tokens(edited) == count_tokens(edited)


@given(conversations(), st.data())
def test_whoever_goes_back_and_forth_gets_a_count_each_time(
    chain: list[Message], data: st.DataObject
) -> None:
    meter = Meter()
    for length in data.draw(st.lists(st.integers(0, len(chain)), max_size=8)):
        sent = chain[:length]
        plain = count_tokens(sent)

        assert meter.tokens(sent) == pytest.approx(plain, rel=0.1, abs=20)

        if sent and data.draw(st.booleans()):
            answer = count_tokens(chain[length : length + 1])
            meter.report([Reported(length, plain, length + 1, answer)])
