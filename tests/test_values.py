"""The exact values in a summary."""

from __future__ import annotations

import llm
import pytest
from conversations import conversations
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import Message, ToolCallPart, ToolResultPart
from oracle import count_tokens

from llm_compact.facts import Fact, rank_facts, texts_of
from llm_compact.language import language_of, words
from llm_compact.summarizers.extractive import with_quotes
from llm_compact.summary import Head, sections_of
from llm_compact.tokens import count_text
from llm_compact.values import lines_of, lost_values, most, not_carried, stands_in, with_values

PROSE = "## Done\n\n" + "The work went on as the user wished, and the tests were run again. " * 12
FILES = [f"tidepool/api/part_{number}.py" for number in range(40)]


def head_of(messages: list[Message], room: int = 600, most: int | None = None) -> Head:
    return Head(
        messages=messages,
        previous=None,
        originals=messages,
        tokens=count_tokens(messages),
        language=language_of(messages),
        room=room,
        most=most,
    )


def files_edited() -> list[Message]:
    messages = [
        llm.user("Rename the class in all files, TIDE-214. " + "The tests run on CI. " * 90)
    ]
    for number, path in enumerate(FILES):
        call = ToolCallPart(name="edit", arguments={"path": path}, tool_call_id=str(number))
        result = ToolResultPart(name="edit", output="done " * 20, tool_call_id=str(number))
        messages += [llm.assistant(call), llm.tool_message(result)]
    return [*messages, llm.assistant("All are renamed.")]


def values_in(summary: str, heading: str = "Exact values") -> list[str]:
    return [line for title, lines in sections_of(summary) if title == heading for line in lines]


def test_a_summary_gets_the_values_that_it_lacks_in_a_section_at_its_end() -> None:
    summary = with_values(PROSE, head_of(files_edited()))

    assert summary.startswith(PROSE.rstrip())
    assert sections_of(summary)[-1][0] == "Exact values"
    assert stands_in("tidepool/api/part_39.py", summary) or "part_39.py" in summary
    assert "TIDE-214" in summary


def test_what_the_summary_says_is_not_listed() -> None:
    summary = with_values(f"{PROSE}\nSee TIDE-214.", head_of(files_edited()))

    assert summary.count("TIDE-214") == 1


def test_values_go_on_in_the_section_that_the_model_wrote() -> None:
    written = f"{PROSE}\n\n## Exact values\n- 06:15"

    summary = with_values(written, head_of(files_edited()))

    assert summary.startswith(f"{written}\n- ")
    assert summary.count("## Exact values") == 1


def test_the_heading_is_in_the_language_of_the_conversation() -> None:
    messages = [
        llm.user("请修改文件 src/潮汐/tides.py，编号 TIDE-214。" * 20),
        llm.assistant("好的，已经修改。"),
    ]

    assert "## 精确值\n- " in with_values(
        "总结：用户要求修改一个文件，已经完成了。" * 4, head_of(messages)
    )


def test_prose_that_fills_the_room_leaves_the_values_two_fifths_of_it() -> None:
    head = head_of(files_edited(), room=100)

    summary = with_values(PROSE, head)

    assert 20 <= count_text(summary) - count_text(PROSE) <= 40


def test_a_contract_is_kept_whatever_the_values() -> None:
    full = count_text(PROSE)

    assert with_values(PROSE, head_of(files_edited(), room=full, most=full)) == PROSE


def test_values_are_three_fifths_at_most() -> None:
    summary = with_values("The files were renamed. " * 9, head_of(files_edited(), 4_000))

    listed = sum(count_text(f"- {line}") for line in values_in(summary))
    assert 0 < listed <= 0.6 * count_text(summary)


def test_a_summary_is_not_blown_up_to_the_size_of_a_short_head() -> None:
    messages = [
        llm.user("Look at a/b.py, c/d.py, e/f.py and g/h.py"),
        llm.assistant("They are fine."),
    ]

    assert with_values("Four files are fine.", head_of(messages)) == "Four files are fine."


@given(conversations(), st.integers(1, 500), st.booleans())
def test_adding_values_never_removes_prose_and_never_goes_over_the_room(
    chain: list[Message], room: int, is_contract: bool
) -> None:
    head = head_of(chain, room, most=room if is_contract else None)

    summary = with_values(PROSE, head)

    assert summary.startswith(PROSE.rstrip())
    allowed = room if is_contract else max(room, count_text(PROSE) + 0.4 * room)
    assert count_text(summary) <= max(allowed, count_text(PROSE))


@given(conversations())
def test_every_value_listed_stands_in_the_originals(chain: list[Message]) -> None:
    said = "\n".join(text for message in chain for _, text in texts_of(message))

    assert all(fact.value in said for fact in rank_facts(chain))


def path_facts(*paths: str) -> list[Fact]:
    return [Fact(path, "path", 1.0) for path in paths]


def test_a_folder_of_several_files_is_written_once() -> None:
    assert lines_of(path_facts("src/app/a.py", "src/app/b.py", "src/c.py"), by_folder=True) == [
        "src/app/: a.py b.py",
        "src/c.py",
    ]


def test_a_path_stands_whole_where_there_is_room() -> None:
    head = head_of(files_edited(), room=4_000)

    assert all(path in with_values(PROSE * 4, head) for path in FILES)


@pytest.mark.parametrize("shorter", ["app/a.py", "./src/app/a.py", "a.py"])
def test_a_path_that_another_one_ends_with_is_not_written(shorter: str) -> None:
    assert lines_of(path_facts(shorter, "src/app/a.py"), by_folder=False) in (
        ["src/app/a.py"],
        ["./src/app/a.py"],
    )


def test_values_are_grouped_by_what_they_are() -> None:
    facts = [
        Fact("session_id", "name", 5.0),
        Fact("12.5 s", "amount", 4.0),
        Fact("e5b3390", "hash", 3.0),
        Fact("--dry-run", "flag", 2.0),
        Fact("2026-03-30", "date", 1.0),
        Fact("make test", "command", 0.5),
    ]

    assert lines_of(facts, by_folder=True) == [
        "e5b3390",
        "12.5 s, 2026-03-30",
        "session_id --dry-run",
        "`make test`",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "in src/app/a.py.",
        "- src/app/: b.py a.py",
        "- /home/me/src/app/: a.py b.py",
        "`src/app/a.py`",
    ],
)
def test_a_text_carries_a_path(text: str) -> None:
    assert list(not_carried(path_facts("src/app/a.py"), text)) == []


@pytest.mark.parametrize(
    "text", ["src/app/a.pyc", "- src/app/: b.py\n- a.py", "- src/: a.py", "my_src/app/a.py", "a.py"]
)
def test_a_text_does_not_carry_a_path(text: str) -> None:
    assert len(list(not_carried(path_facts("src/app/a.py"), text))) == 1


def test_a_value_is_lost_that_is_neither_in_the_summary_nor_in_the_tail() -> None:
    facts = [Fact(value, "hash", 1.0) for value in ("e5b3390", "61fa8be", "a6e2c18")]

    lost = lost_values(facts, "Based on e5b3390.", [llm.user("What is 61fa8be?")])

    assert [fact.value for fact in lost] == ["a6e2c18"]


def test_what_only_a_tool_printed_is_not_used() -> None:
    output = ToolResultPart(name="ls", output="printed/by_tool.py", tool_call_id="1")
    messages = [llm.user("Open asked/for.py"), llm.tool_message(output)]

    assert {fact.value: fact.is_used for fact in rank_facts(messages)} == {
        "asked/for.py": True,
        "printed/by_tool.py": False,
    }


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_most_that_fits_is_found_nearly(limit: int, fitting: int) -> None:
    best = min(limit, fitting)

    assert 0.98 * best <= most(lambda number: number <= fitting, limit) <= best


def test_a_fresh_error_is_quoted() -> None:
    error = "ValueError: no such station"
    failed = ToolResultPart(name="run", output=f"running\n{error}\n", tool_call_id="1")

    summary = with_values(PROSE, head_of([*files_edited(), llm.tool_message(failed)], 4_000))

    assert f"\n- {error}" in summary


def test_prose_that_is_too_short_for_the_values_is_joined_by_what_was_said() -> None:
    messages = [
        message
        for n in range(60)
        for message in (
            llm.user(f"Please find out how high the water at gauge G{n:02}X stood in the storm."),
            llm.assistant(
                f"At G{n:02}X it stood higher than ever, because of the wind. "
                + "So it was told. " * 5
            ),
        )
    ]
    head = head_of(messages, 2_000)
    short = "## Done\nThe work went on."

    summary = with_values(with_quotes(short, head), head)

    said = words("en")
    sections = dict(sections_of(summary))
    assert list(sections) == ["Done", said["requests"], said["statements"], said["values"]]
    assert sum(f"G{n:02}X" in summary for n in range(60)) >= 58
    assert sum(f"G{n:02}X" in with_values(short, head) for n in range(60)) <= 10
    assert sum(map(count_text, sections[said["values"]])) <= 0.6 * count_text(summary)
    assert with_quotes(PROSE * 20, head) == PROSE * 20


def test_a_name_that_stands_in_a_longer_value_takes_no_room_of_its_own() -> None:
    facts = [Fact("session_id", "name", 2.0), Fact("state.session_id", "dotted", 1.0)]

    assert lines_of(facts, by_folder=False) == ["state.session_id"]
