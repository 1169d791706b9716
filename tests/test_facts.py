"""Exact values."""

from __future__ import annotations

import llm
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import ToolCallPart, ToolResultPart

from llm_compact.facts import error_lines, exact_values, rank_facts


@pytest.mark.parametrize(
    "text, values",
    [
        ("see tidepool/api/stations.py, line 3", ["tidepool/api/stations.py"]),
        ("in `~/.config/tide.toml` and /etc/hosts.", ["~/.config/tide.toml", "/etc/hosts"]),
        ("open ../docs/my-notes.v2.md now", ["../docs/my-notes.v2.md"]),
        ("C:\\Users\\marit\\tides.db", ["C:\\Users\\marit\\tides.db"]),
        ("just README.md", ["README.md"]),
        ("at https://tides.example/a?b=1#c.", ["https://tides.example/a?b=1#c"]),
        ("(https://tides.example/x)", ["https://tides.example/x"]),
        ("write to ops@tides.example please", ["ops@tides.example"]),
        ("id 550e8400-e29b-41d4-a716-446655440000", ["550e8400-e29b-41d4-a716-446655440000"]),
        ("commit e5b3390 fixes TIDE-214", ["e5b3390", "TIDE-214"]),
        ("from 0.9.3 to v0.10.0", ["0.9.3", "v0.10.0"]),
        ("after 12.5 s, 40 ms or 30%", ["12.5 s", "40 ms", "30%"]),
        ("it costs $1,299.50 or 20 EUR", ["$1,299.50", "20 EUR"]),
        ("on 2026-03-30 at 14:05", ["2026-03-30", "14:05"]),
        ("run it with --dry-run and --keep=2x", ["--dry-run", "--keep=2x"]),
        ("station_id, dayBounds and MAX_RETRIES", ["station_id", "dayBounds", "MAX_RETRIES"]),
        ("raises ZoneInfoNotFoundError", ["ZoneInfoNotFoundError"]),
        ("reservation S61CZX on HAT228", ["S61CZX", "HAT228"]),
        ("版本v1.2.3在docs/tides.md里", ["v1.2.3", "docs/tides.md"]),
        ("2026年3月30日水位是150厘米，收费35元", ["2026年3月30日", "150", "35元"]),
        ("the chart of nv-charts.de", ["nv-charts.de"]),
        ("colour #3A8BF5, line 12 of src/a.py:17", ["#3A8BF5", "src/a.py"]),
        ("colour #4a9eff at 0x5deece66d", ["#4a9eff", "0x5deece66d"]),
        ("src/a.py:1217: and 1218:import os", ["src/a.py"]),
        ("at localhost:8080 or port:9090", ["8080", "9090"]),
        ("the LastCheckpointID of a TideE", ["LastCheckpointID", "TideE"]),
        ("tide().as_long, ...dayBounds and last_tide.x", ["as_long", "dayBounds", "last_tide"]),
        ("call 415-485-1140 about 700-800 rows", ["415-485-1140", "700-800"]),
        ('<path d="0-85-42.1-85-89z"/>', []),
        ("session 2026-01-21-test or sess-123", ["2026-01-21-test", "sess-123"]),
        ("5.0/timeout_seconds and .3/0.10.0", ["5.0", "timeout_seconds", "0.10.0"]),
        ("8개 중 30개, 3个 and 12个", ["30개", "12个"]),
        ("a population of 1,234,567", ["1,234,567"]),
        ("the log of 2026-03-30T14:05:10.123Z", ["2026-03-30T14:05:10.123Z"]),
        ("timeout=120000 and std::sync", ["120000"]),
        ("curl localhost:8437/stations/torshavn?day=1", ["localhost:8437/stations/torshavn"]),
        ("GET api.example:443/a/b/", ["api.example:443/a/b"]),
        ('strftime("%Y-%m-%dT%H:%M")', []),
        ("a well-known and/or pre-existing path", ["well-known", "and/or", "pre-existing"]),
        ('{"path": "a\\nsrc/b.py\\n"}', ["src/b.py"]),
        ("  12→import os\n  13→x = y_z", ["y_z"]),
        ("nothing exact in here", []),
        ("the number 7 alone", []),
    ],
)
def test_exact_values(text: str, values: list[str]) -> None:
    assert sorted(value for value, _ in exact_values(text)) == sorted(values)


@given(st.text(max_size=400))
def test_an_exact_value_stands_in_the_text(text: str) -> None:
    assert all(value in text for value, _ in exact_values(text))


def test_a_huge_text_is_read_at_its_ends() -> None:
    text = "first/file.py " + "x" * 10_000_000 + " last/file.py"

    assert [value for value, _ in exact_values(text)] == ["first/file.py", "last/file.py"]


@pytest.mark.parametrize(
    "command",
    ["a_" * 60 + "x.y; cat src/tides.py", "sed 's/" + r"\." * 60 + " src/tides.py"],
)
def test_what_repeats_itself_keeps_nobody_waiting(command: str) -> None:
    # An expression that tries each way to split it would take longer than anybody lives.
    ran = ToolCallPart(name="run", arguments={"command": command})

    assert "src/tides.py" in {fact.value for fact in rank_facts([llm.assistant(ran)])}


def test_what_people_use_ranks_above_what_tools_print() -> None:
    output = ToolResultPart(name="ls", output="printed/by_tool.py")
    messages = [
        llm.user("Please open asked/for.py"),
        llm.tool_message(output),
        llm.assistant("I changed used/twice.py."),
        llm.assistant("Now used/twice.py works."),
    ]

    ranked = [fact.value for fact in rank_facts(messages)]

    assert ranked == ["used/twice.py", "asked/for.py", "printed/by_tool.py"]


def test_people_hyphenate_words_that_are_no_names() -> None:
    (fact,) = rank_facts(
        [llm.user("A pre-existing and/or well-known flaw in tide_table, as I said")]
    )

    assert fact.value == "tide_table"


def test_documents_that_tools_print_are_prose_as_well() -> None:
    printed = "A pre-existing before/after flaw of day_bounds/tideTable"

    facts = rank_facts([llm.tool_message(ToolResultPart(name="read", output=printed))])

    assert [fact.value for fact in facts] == ["day_bounds", "tideTable"]


def test_the_parts_of_a_substitution_are_no_path() -> None:
    command = (
        "sed -i 's/0\\.9\\.3/0.10.0/; s#^limit = 5.0#limit = 12.5#; "
        "1,/^from/s/^from/from tidepool/' a.py"
    )
    call = ToolCallPart(name="run", arguments={"command": command})

    facts = rank_facts([llm.assistant(call)])

    assert {fact.value for fact in facts} - {command} == {"0.10.0", "5.0", "12.5", "a.py"}


@pytest.mark.parametrize("key", ["offset", "limit", "line", "start_line", "line_number"])
def test_the_line_that_is_read_is_no_value(key: str) -> None:
    call = ToolCallPart(name="read", arguments={"path": "src/a.py", key: 1460})

    assert [fact.value for fact in rank_facts([llm.assistant(call)])] == ["src/a.py"]


def test_a_name_is_found_at_the_end_of_all_that_it_is_a_part_of() -> None:
    said = ("row.ended_at", "state.started_at", "pa.started_at", "row.started_at")

    facts = rank_facts([llm.assistant(text) for text in said])

    assert facts[0].value == "started_at"


def test_an_error_is_quoted_without_the_bullet_before_it() -> None:
    output = ToolResultPart(name="edit", output="ERRORS:\n- E999 SyntaxError: invalid syntax")

    facts = rank_facts([llm.tool_message(output)])

    assert [fact.value for fact in facts if fact.kind == "error"] == [
        "E999 SyntaxError: invalid syntax"
    ]


def test_of_two_values_of_equal_use_the_shorter_one_comes_first() -> None:
    facts = rank_facts([llm.assistant("a/very/long/path/of/many/names.py and tide_table")])

    assert [fact.value for fact in facts] == ["tide_table", "a/very/long/path/of/many/names.py"]


def test_what_stands_between_backticks_is_meant_exactly() -> None:
    facts = rank_facts([llm.user("On `main`, run `make test` but not `()` or `!=`.")])

    assert {fact.value for fact in facts} == {"main", "make test"}


def test_what_somebody_said_long_ago_ranks_above_what_a_tool_goes_on_printing() -> None:
    said = [llm.user("It is called first_gauge."), *[llm.assistant("I am still at it.")] * 20]
    printed = [llm.tool_message(ToolResultPart(name="ls", output="late_gauge"))] * 3

    ranked = [fact.value for fact in rank_facts([*said, *printed])]

    assert ranked == ["first_gauge", "late_gauge"]


def test_an_argument_that_is_a_value_ranks_above_those_in_a_longer_one() -> None:
    written = ToolCallPart(name="write", arguments={"text": "x = first_name + last_name"})
    read = ToolCallPart(name="read", arguments={"at": "120000"})

    ranked = [fact.value for fact in rank_facts([llm.assistant(written, read)])]

    assert ranked[0] == "120000"


def test_one_value_of_a_few_ranks_above_one_of_hundreds() -> None:
    names = " ".join(f"name_{number}" for number in range(300))
    few = ToolResultPart(name="get", output="the_one and other_one")
    many = ToolResultPart(name="ls", output=names)

    ranked = [fact.value for fact in rank_facts([llm.tool_message(many), llm.tool_message(few)])]

    assert set(ranked[:2]) == {"the_one", "other_one"}


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Nuuk is no station",
        "error: could not compile `tides`",
        "E       assert 1 == 2",
        "FAILED tests/test_tides.py::test_high - assert 1 == 2",
        "process finished with exit code 2",
        "cat: tides.txt: No such file or directory",
        "错误: 找不到文件",
        "KeyError('Nuuk')",
        "requests.exceptions.ConnectionError('refused')",
        "connect('127.0.0.1') failed: Permission denied",
        "return code was bad, error: 7",
        "if this goes on: error: disk full",
        "class Tides not found",
        "time=12:00 level=error msg='panic: no water'",
    ],
)
def test_error_lines(line: str) -> None:
    assert error_lines(f"all is well\n  {line}\nmore output\n") == [" ".join(line.split())]


@pytest.mark.parametrize(
    "line",
    [
        *("42→raise ValueError('x')", "src/a.py:7: # error: is raised here", "0 errors", "E  ^^"),
        "throw new Error(`Station not found: ${name}`);",
        "} catch (error: any) {",
        "raise ValueError('no station')",
        "raise AttributeError(",
        "except ValueError:",
        'return fmt.Errorf("station not found: %s", name)',
        "this.showError(`Login failed: ${error.message}`);",
        '- eprintln!("[tides] apply failed: {e}");',
        't.Errorf("Tide(%q) unexpected error: %v", value, err)',
        "884-func TestTides_MutualExclusivityError(t *testing.T) {",
        'error = ValueError("no station")',
        "if (!station) throw new Error('not found');",
        "error: StationSchema,",
        "--- PASS: TestTidesError (0.00s)",
    ],
)
def test_lines_that_only_look_like_errors(line: str) -> None:
    assert error_lines(line) == []
