"""The far past is told in fewer words from one summary to the next, the recent past in detail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_compact.layers import with_layers
from llm_compact.sections import Summary
from llm_compact.tokens import count_text

OLD = [
    f"High water number {n} was looked up. The chart of Ribe had it at 06:{n:02}, an hour late."
    for n in range(20)
]
NEW = "The ferry to Nuuk was booked. It leaves from berth 7, because the harbour falls dry."


def test_what_was_told_before_is_shortened_the_oldest_first() -> None:
    summary = with_layers(Summary(done=[*OLD, NEW]), Summary(done=OLD), room=1_200)

    first = [item.split(" The chart")[0] for item in OLD]
    shortened = sum(item not in OLD for item in summary.done[:-1])
    assert summary.done == [*first[:shortened], *OLD[shortened:], NEW]
    assert 0 < shortened < len(OLD)


def test_where_that_is_not_enough_the_oldest_is_left_out() -> None:
    summary = with_layers(Summary(done=[*OLD, NEW]), Summary(done=OLD), room=300)

    assert summary.done[-2:] == ["High water number 19 was looked up.", NEW]
    assert 0 < len(summary.done) < len(OLD)


def test_a_past_of_a_few_words_stays_as_it_is() -> None:
    summary = Summary(done=[*OLD, NEW], findings=["The chart is old."])

    assert with_layers(summary, Summary(done=OLD), room=3_000) == summary
    assert with_layers(summary, Summary(), room=30) == summary


def test_what_holds_stays_however_long_ago_it_was_told() -> None:
    holds = {
        "goal": "Know the tides.",
        "rules": [{"quote": "Never touch main."}],
        "decisions": OLD,
        "in_progress": OLD,
        "open": OLD,
        "exact_values": OLD,
    }
    previous = Summary(**holds, done=OLD)

    summary = with_layers(Summary(**holds, done=OLD), previous, room=100)

    assert summary.model_copy(update={"done": OLD}) == previous
    assert len(summary.done) < len(OLD)


def test_chinese_is_known_again_where_a_model_words_it_a_little_differently() -> None:
    told = "已查明里贝的高潮时间是六点十五分，比预报晚了一个小时。"
    again = "已查明里贝的高潮时间是六点十五分，比预报晚了一小时。"
    news = "去努克的渡轮从七号码头出发，因为港口下午会干涸。"

    summary = with_layers(Summary(done=[again, news]), Summary(done=[told]), room=30)

    assert summary.done == [news]


@given(st.lists(st.sampled_from([*OLD, NEW, "Done.", "- a\n  - b"])), st.integers(1, 2_000))
def test_the_far_past_takes_a_third_of_the_room_at_most(done: list[str], room: int) -> None:
    summary = with_layers(Summary(done=done), Summary(done=OLD), room)

    far = [item for item in summary.done if item.startswith("High water")]
    assert sum(count_text(f"- {item}\n") for item in far) <= room // 3
    assert summary.done.count(NEW) == Summary(done=done).done.count(NEW)
    assert with_layers(summary, Summary(done=OLD), room) == summary
