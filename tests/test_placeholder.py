"""What stands in for old tool output, and the way back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llm
import pytest
from conversations import PICTURE, conversations
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from oracle import key, violations

from llm_compact.chain import hashes_of
from llm_compact.conversation import generation_of, history_of
from llm_compact.placeholder import (
    LARGE,
    Pruning,
    placeholder,
    pruned,
    pruned_hashes,
    restored,
    restored_from,
)
from llm_compact.tokens import count_text, message_tokens

PRUNING = Pruning(generation=1, compaction="01abc")
LOG = "\n".join(f"line {n}: tide gauge {n} of Esbjerg answered in {n} ms" for n in range(300))


def result(output: str, **kwargs: Any) -> ToolResultPart:
    return ToolResultPart(name="run", output=output, tool_call_id="c1", **kwargs)


def round_of(*results: ToolResultPart, arguments: dict[str, Any] | None = None) -> list[Message]:
    calls = [
        ToolCallPart(name=r.name, arguments=arguments or {}, tool_call_id=r.tool_call_id)
        for r in results
    ]
    return [Message("assistant", list(calls)), Message("tool", list(results))]


def prune(messages: Sequence[Message], until: int | None = None) -> list[Message]:
    return pruned(messages, hashes_of(messages), len(messages) if until is None else until, PRUNING)


def output_of(message: Message, position: int = 0) -> str:
    part = message.parts[position]
    assert isinstance(part, ToolResultPart)
    return part.output


def text(output: str, *, is_logged: bool = True) -> str | None:
    call = ToolCallPart(name="run", arguments={"path": "tides"}, tool_call_id="c1")
    return placeholder(result(output), call, is_logged=is_logged)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Message], int]:
    """A conversation in which some results are large, and how much of it is old."""
    chain = draw(conversations())
    for message in chain:
        for part in message.parts:
            if isinstance(part, ToolResultPart) and draw(st.booleans()):
                part.output += LOG
    return chain, draw(st.integers(0, len(chain)))


@given(cases())
def test_a_pruned_chain_is_as_valid_as_before(case: tuple[list[Message], int]) -> None:
    chain, until = case

    assert violations(prune(chain, until)) <= violations(chain)


@given(cases())
def test_nothing_but_old_output_of_tools_changes(case: tuple[list[Message], int]) -> None:
    chain, until = case

    after = prune(chain, until)

    assert [m.role for m in after] == [m.role for m in chain]
    blank = [key(without_output(m)) for m in chain]
    assert [key(without_output(m)) for m in after] == blank
    # Before the first placeholder and from the end of the head on even the output is the same,
    # and only the first message tells that this is another conversation.
    first = next((i for i, m in enumerate(chain) if m.role == "tool" and after[i] is not m), None)
    changed = [i for i, m in enumerate(chain[:first]) if after[i] is not m]
    assert changed == ([] if first is None else changed[:1])
    assert {chain[i].role for i in changed} <= {"user", "assistant"}
    assert [key(m) for m in after[until:]] == [key(m) for m in chain[until:]]


def without_output(message: Message) -> Message:
    if message.role != "tool":
        return message
    parts = [
        ToolResultPart(
            name=part.name,
            tool_call_id=part.tool_call_id,
            exception=part.exception,
            attachments=part.attachments,
        )
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    return Message(message.role, list(parts))


@given(cases())
def test_no_message_gets_larger(case: tuple[list[Message], int]) -> None:
    chain, until = case

    for before, after in zip(chain, prune(chain, until), strict=True):
        assert message_tokens(after) <= message_tokens(before)


@given(cases())
def test_the_way_back_leads_to_every_output(case: tuple[list[Message], int]) -> None:
    chain, until = case
    after = prune(chain, until)
    log = dict(zip(hashes_of(chain), chain, strict=True))

    assert list(map(key, restored(after, log.get))) == list(map(key, chain))
    assert list(map(key, restored_from(after, chain))) == list(map(key, chain))
    assert list(map(key, restored(after, {}.get))) == list(map(key, after))


@given(cases())
def test_each_large_result_that_is_old_gets_a_placeholder(case: tuple[list[Message], int]) -> None:
    chain, until = case

    for before, after in zip(chain[:until], prune(chain, until), strict=False):
        for old, new in zip(before.parts, after.parts, strict=before.role == "tool"):
            is_large = isinstance(old, ToolResultPart) and LOG in old.output
            is_pruned = bool(pruned_hashes([Message("tool", [new])]))
            assert is_pruned == (is_large and before.role == "tool")


@given(
    st.text() | st.sampled_from([LOG, "潮汐" * 900, json.dumps([{"id": n} for n in range(900)])])
)
def test_a_placeholder_is_less_than_half(output: str) -> None:
    found = text(output * 3)

    assert found is None or 2 * count_text(found) <= count_text(output * 3)


def test_a_placeholder_tells_the_call_the_ends_and_how_much_is_missing() -> None:
    found = text(LOG)

    assert found is not None
    lines = found.splitlines()
    assert lines[0] == '[run(path="tides")]'
    assert lines[1] == LOG.splitlines()[0]
    assert lines[-1] == LOG.splitlines()[-1]
    kept = [line for line in lines[1:] if line in LOG.splitlines()]
    tokens = count_text(LOG) - count_text("\n".join(kept))
    mark = next(line for line in lines if "left out" in line)
    assert mark.startswith(f"[… {300 - len(kept)} lines (")
    told = int(mark.split("(")[1].split(" ")[0].replace(",", ""))
    assert abs(told - tokens) <= 5
    assert mark.endswith("left out by llm-compact; the original is in the log]")


def test_a_placeholder_names_no_log_where_there_is_none() -> None:
    found = text(LOG, is_logged=False)

    assert found is not None and "left out by llm-compact]" in found


def test_a_single_long_line_keeps_its_ends_and_counts_characters() -> None:
    data = json.dumps([{"gauge": n, "level": n / 7} for n in range(400)])

    found = text(data)

    assert found is not None
    _, first, mark, last = found.splitlines()
    assert data.startswith(first) and data.endswith(last)
    assert f"[… {len(data) - len(first) - len(last):,} characters (" in mark


def test_errors_between_the_ends_are_kept() -> None:
    lines = LOG.splitlines()
    lines[150] = "ValueError: gauge 150 has no zero point"

    found = text("\n".join(lines))

    assert found is not None and "ValueError: gauge 150 has no zero point" in found


def test_many_errors_do_not_make_a_placeholder_large() -> None:
    found = text("\n".join(f"Error: gauge {n} of 500 is silent" for n in range(500)))

    assert found is not None and count_text(found) < 300


def test_long_arguments_are_shortened() -> None:
    chain = round_of(result(LOG), arguments={"text": "x" * 900, "path": "a.md"})

    first = output_of(prune(chain)[1]).splitlines()[0]

    assert len(first) < 100 and "…" in first and "a.md" in first


def test_small_results_stay() -> None:
    chain = round_of(result("gauge 7 is silent\n" * (LARGE // 10)))

    assert prune(chain) == chain


def test_flags_attachments_and_metadata_stay_on_a_placeholder() -> None:
    metadata = {"gemini": {"signature": "xyz"}}
    chain = round_of(
        result(LOG, exception="TimeoutError", attachments=[PICTURE], provider_metadata=metadata)
    )

    part = prune(chain)[1].parts[0]

    assert isinstance(part, ToolResultPart) and part.provider_metadata
    assert (part.exception, part.attachments, part.tool_call_id) == (
        "TimeoutError",
        [PICTURE],
        "c1",
    )
    assert part.provider_metadata["gemini"] == {"signature": "xyz"}


def test_what_a_provider_ran_itself_is_left_alone() -> None:
    search = result(LOG, server_executed=True)
    chain = [Message("assistant", [search]), Message("tool", [search])]

    assert prune(chain) == chain


def test_a_placeholder_is_never_pruned_again() -> None:
    once = prune(round_of(result(LOG)))

    assert pruned(once, hashes_of(once), 2, Pruning(2, "01def")) == once


def test_a_message_that_was_pruned_twice_finds_both_originals() -> None:
    first = ToolResultPart(name="run", output=LOG, tool_call_id="c1")
    second = ToolResultPart(name="run", output=LOG[100:], tool_call_id="c2")
    chain = round_of(first, second)
    mixed = [chain[0], Message("tool", [prune(chain)[1].parts[0], second])]
    twice = pruned(mixed, hashes_of(mixed), 2, Pruning(2, "01def"))
    log = dict(zip(hashes_of(chain) + hashes_of(mixed), chain + mixed, strict=True))

    assert pruned_hashes(twice) == [hashes_of(chain)[1], hashes_of(mixed)[1]]
    assert restored(twice, log.get) == chain
    assert generation_of(twice) == 2


def test_reasoning_behind_a_placeholder_is_dropped_and_before_it_stays() -> None:
    def answer(text: str) -> Message:
        return Message("assistant", [ReasoningPart(text="because"), TextPart(text=text)])

    chain = [llm.user("a"), answer("b"), llm.user("c"), *round_of(result(LOG)), answer("d")]

    after = prune(chain)

    assert after[1] == chain[1]
    assert after[5].parts == chain[5].parts[1:]


@pytest.mark.parametrize("length", [0, 1])
def test_a_pruned_chain_does_not_pass_for_a_summarized_one(length: int) -> None:
    chain = [llm.user("a")] * length + round_of(result(LOG))

    assert history_of(prune(chain)).summary is None
