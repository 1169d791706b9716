"""Where the head ends."""

from __future__ import annotations

import llm
import pytest
from conversations import PICTURE, broken_conversations, conversations
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import Message, ToolCallPart, ToolResultPart
from oracle import requests_of, violations

from llm_compact.conversation import (
    Marker,
    compacted_chain,
    history_of,
    marker_of,
    requests,
    without_reasoning,
)
from llm_compact.cut import choose_cut, cut_points
from llm_compact.errors import CompactionError, NothingToCompact
from llm_compact.tokens import Size, message_tokens, parse_keep

KEEP = st.one_of(
    st.none(),
    st.integers(1, 9).map(lambda n: Size(n, "exchanges")),
    st.integers(1, 20).map(lambda n: Size(n, "messages")),
    st.integers(1, 2_000).map(lambda n: Size(n, "tokens")),
)


def body_of(*roles: str) -> list[Message]:
    """u user, a answer, c a call and its result, p a call that waits for its result."""
    body: list[Message] = []
    for number, role in enumerate("".join(roles)):
        call = ToolCallPart(name="lookup", arguments={}, tool_call_id=str(number))
        result = ToolResultPart(name="lookup", output="found", tool_call_id=str(number))
        body += {
            "u": [llm.user(f"question {number}")],
            "a": [llm.assistant(f"answer {number}")],
            "c": [llm.assistant(call), llm.tool_message(result)],
            "p": [llm.assistant(call)],
            "i": [llm.user(PICTURE)],
        }[role]
    return body


def compacted(chain: list[Message], keep: Size | None) -> list[Message] | None:
    """The compacted chain, or None where there is nothing to compact."""
    history = history_of(chain)
    try:
        cut = choose_cut(history.body, [message_tokens(m) for m in history.body], keep)
    except CompactionError:
        return None
    tail = without_reasoning(cut.tail(history.body))
    return compacted_chain(history.system, "sum up", "summary", tail, Marker(1, "id", 1))


@given(conversations(), KEEP)
def test_a_compacted_chain_is_always_valid(chain: list[Message], keep: Size | None) -> None:
    result = compacted(chain, keep)
    # What the source is waiting for, the compacted conversation waits for too.
    assert result is None or violations(result) <= violations(chain)


@given(broken_conversations(), KEEP)
def test_a_broken_conversation_is_not_broken_further(
    chain: list[Message], keep: Size | None
) -> None:
    result = compacted(chain, keep)
    assert result is None or violations(result) <= violations(chain)


@given(conversations(), KEEP)
def test_the_newest_request_is_always_kept_word_for_word(
    chain: list[Message], keep: Size | None
) -> None:
    result = compacted(chain, keep)
    assert result is None or requests_of(result)[-1] == requests_of(chain)[-1]


@given(conversations(), KEEP)
def test_every_message_is_in_the_head_or_in_the_tail(
    chain: list[Message], keep: Size | None
) -> None:
    body = history_of(chain).body
    for cut in cut_points(body):
        head, tail = cut.head(body), cut.tail(body)
        assert head and tail
        assert len(head) + len(tail) == len(body)
        assert tail[-1] is body[-1]


@given(conversations(), KEEP)
def test_a_compacted_chain_can_be_compacted_again(chain: list[Message], keep: Size | None) -> None:
    first = compacted(chain, keep)
    if first is None:
        return
    history = history_of(first)
    assert history.summary is not None and history.summary.text == "summary"
    assert not any(marker_of(m) for m in history.body)
    longer = [*first, llm.user("and now?"), llm.assistant("now this")]
    second = compacted(longer, keep)
    if second is not None:
        assert violations(second) <= violations(longer)
        assert sum(marker_of(m) is not None for m in second if m.role == "assistant") == 1


@pytest.mark.parametrize(
    "body, keep, tail",
    [
        ("ua ua ua ua", "2x", "ua ua"),
        ("ua ua ua ua", "1x", "ua"),
        ("ua ua ua ua", "2", "ua ua"),
        ("ua ua ua ua", "1m", "ua"),  # rounded up to a whole exchange
        ("ua ua ua ua", "3m", "ua ua"),
        ("ua ua uca", "1m", "ua"),  # the last round, behind the request that it answers
        ("ua ua ucccca", "3m", "uca"),
        ("ua ua ucccca", "4m", "ucca"),
        ("ua ua ucccca", "1x", "ucccca"),
        ("ua ua ucc", "1m", "uc"),  # results that nobody has answered yet stay
        ("ua ua uccp", "1m", "up"),
        ("ua ua uccp", "2m", "ucp"),
        ("ua u ua", "1x", "ua"),  # a request without an answer
        ("ua ua u", "1x", "u"),
        ("ua ua ucia", "1x", "ucia"),  # a tool's picture starts no exchange
        ("ua ua ucia", "1m", "ua"),
        ("ucccccca", "3m", "uca"),  # a first prompt with a long tool loop
    ],
)
def test_what_is_kept(body: str, keep: str, tail: str) -> None:
    messages = body_of(body.replace(" ", ""))
    cut = choose_cut(messages, [10] * len(messages), parse_keep(keep))
    shape = ["c" if m.role == "tool" else m.role[0] for m in cut.tail(messages)]
    expected = ["c" if m.role == "tool" else m.role[0] for m in body_of(tail.replace(" ", ""))]
    assert shape == expected
    assert cut.tail(messages)[-1] is messages[-1]
    assert cut.tail(messages)[0] is messages[requests(messages)[-len(requests(cut.tail(messages)))]]


def test_tokens_are_a_budget() -> None:
    messages = body_of("ua" * 6)
    sizes = [10] * len(messages)

    assert len(choose_cut(messages, sizes, Size(59, "tokens")).tail(messages)) == 4
    assert len(choose_cut(messages, sizes, Size(60, "tokens")).tail(messages)) == 6
    # The newest request and its answer stay, however small the budget is.
    assert len(choose_cut(messages, sizes, Size(1, "tokens")).tail(messages)) == 2


def test_by_default_two_exchanges_are_kept() -> None:
    messages = body_of("ua" * 6)

    assert len(choose_cut(messages, [10] * 12, None).tail(messages)) == 4


def test_by_default_the_tail_is_at_most_half() -> None:
    messages = body_of("ua" * 6)
    second_last_is_large = [10] * 8 + [10, 500, 10, 10]

    assert len(choose_cut(messages, second_last_is_large, None).tail(messages)) == 2


def test_by_default_a_long_tool_loop_is_cut_between_rounds() -> None:
    messages = body_of("uaua" + "u" + "c" * 20 + "a")
    cut = choose_cut(messages, [10] * len(messages), None)
    tail = cut.tail(messages)

    assert tail[0] is messages[4]
    assert [m.role for m in tail[1:3]] == ["assistant", "tool"]
    assert len(messages) // 2 - 2 <= len(tail) <= len(messages) // 2


def test_by_default_the_newest_request_and_its_answer_stay_whatever_they_cost() -> None:
    messages = body_of("uauaua")

    assert choose_cut(messages, [1, 1, 1, 1, 900, 900], None).tail(messages) == messages[4:]


def test_what_was_asked_for_is_kept_even_if_it_is_more_than_half() -> None:
    messages = body_of("ua" * 6)

    assert len(choose_cut(messages, [10] * 12, parse_keep("5x")).tail(messages)) == 10


def test_a_result_that_comes_late_stays_with_its_call() -> None:
    call = ToolCallPart(name="lookup", arguments={}, tool_call_id="late")
    result = ToolResultPart(name="lookup", output="found", tool_call_id="late")
    messages = [
        *body_of("ua"),
        llm.user("look"),
        llm.assistant(call),
        llm.user("never mind"),
        llm.assistant("fine"),
        llm.tool_message(result),
        llm.assistant("found it after all"),
    ]

    assert [cut.position for cut in cut_points(messages)] == [2, 7]


def test_calls_without_ids_are_matched_by_name() -> None:
    call, result = ToolCallPart(name="lookup"), ToolResultPart(name="lookup", output="found")
    round = [llm.assistant(call), llm.tool_message(result)]
    messages = [llm.user("look"), *round, *round, llm.assistant("done")]

    assert [cut.position for cut in cut_points(messages)] == [3, 5]


def test_a_conversation_without_any_request_is_left_alone() -> None:
    with pytest.raises(NothingToCompact):
        choose_cut([llm.assistant("hello"), llm.assistant("again")], [9, 9], None)
