"""`llm compact list` and `llm compact show`: what the log says about its compactions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, Talk
from scripted import Plugin, Reply

import llm_compact
from llm_compact.conversation import text_of

Run = Callable[..., Result]


@pytest.fixture
def generations(long_talk: str, models: Plugin, log: Log) -> list[str]:
    """A conversation, and its first and second generation."""
    first = llm_compact.compact(model="extractive", focus="the levels")
    llm_compact.compact(model="extractive", keep="1x")
    return [long_talk, first.id, log.newest()["id"]]


def test_list_has_a_line_for_each_compaction_the_newest_first(
    generations: list[str], log: Log, run: Run
) -> None:
    first, second = log.db["compactions"].rows

    result = run("compact", "list")

    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == generations[:0:-1]
    assert f"{first['tokens_before']:,} -> {first['tokens_after']:,}" in lines[1]
    assert all(
        told in lines[0]
        for told in (f"from {generations[1]}", "#2", "manual", "extractive", "When was high water")
    )
    assert second["datetime_utc"][:16].replace("T", " ") in lines[0]
    assert len(run("compact", "list", "--count", "1").stdout.splitlines()) == 1


def test_list_of_a_conversation_is_about_its_lineage_only(
    generations: list[str], talk: Talk, run: Run
) -> None:
    other = talk([("And in Ribe?", LONG.format(place="Ribe", n=n)) for n in range(4)])
    llm_compact.compact(model="extractive")

    of_each = [
        [c["id"] for c in json.loads(run("compact", "list", "--cid", id, "--json").stdout)]
        for id in generations
    ]

    assert of_each == [generations[:0:-1]] * 3
    assert len(json.loads(run("compact", "list", "--json").stdout)) == 3
    assert len(run("compact", "list", "--cid", other).stdout.splitlines()) == 1


def test_a_log_without_compactions_has_an_empty_list(long_talk: str, log: Log, run: Run) -> None:
    before = log.rows()

    assert run("compact", "list").stdout == ""
    assert json.loads(run("compact", "list", "--json").stdout) == []
    result = run("compact", "show")
    assert result.exit_code == 1
    assert "No compaction found of or as" in result.stderr
    assert log.rows() == before


def test_show_tells_the_record_the_lineage_and_the_summary(
    generations: list[str], log: Log, run: Run
) -> None:
    shown = run("compact", "show", generations[1]).stdout

    row = next(log.db["compactions"].rows)
    assert f"{row['tokens_before']:,} -> {row['tokens_after']:,}" in shown
    assert "the levels" in shown and "summarized:   4 exchanges (8 messages)" in shown
    assert "kept:         2 exchanges (4 messages)" in shown
    assert " -> ".join(generations[:2]) in shown
    assert shown.endswith("\n\n" + text_of(log.messages(generations[1])[2]) + "\n")


def test_show_finds_a_compaction_by_its_conversation_its_turn_and_its_source(
    generations: list[str], log: Log, run: Run
) -> None:
    first, second = log.db["compactions"].rows

    def turn(*args: str) -> Any:
        return json.loads(run("compact", "show", *args, "--json").stdout)["turn_id"]

    assert turn() == turn("-c") == turn(generations[2]) == second["turn_id"]
    assert turn(first["turn_id"]) == turn(generations[1]) == first["turn_id"]
    assert run("compact", "show", "01nothing").exit_code == 1


def test_the_id_of_an_original_shows_its_newest_generation(
    generations: list[str], run: Run
) -> None:
    of_original = json.loads(run("compact", "show", generations[0], "--json").stdout)
    of_first = json.loads(run("compact", "show", generations[1], "--json").stdout)

    assert (of_original["id"], of_original["lineage"]) == (generations[2], generations)
    assert (of_first["id"], of_first["lineage"]) == (generations[1], generations[:2])


def test_list_of_a_conversation_that_is_not_there_is_an_error(
    generations: list[str], talk: Talk, run: Run
) -> None:
    other = talk([("And in Ribe?", "At six.")])

    unknown = run("compact", "list", "--cid", "01nothing")
    never_compacted = run("compact", "list", "--cid", other)

    assert unknown.exit_code == 1
    assert unknown.stderr == "Error: No conversation found with id=01nothing\n"
    assert (never_compacted.exit_code, never_compacted.stdout) == (0, "")


def test_an_original_that_was_deleted_still_lists_what_came_from_it(
    generations: list[str], log: Log, run: Run
) -> None:
    log.db.execute("pragma foreign_keys = off")
    with log.db.conn:
        log.db.execute("update threads set forked_from = null")
        log.db.execute("delete from turns where thread_id = ?", [generations[0]])
        log.db.execute("delete from threads where id = ?", [generations[0]])

    assert len(run("compact", "list", "--cid", generations[0]).stdout.splitlines()) == 2


def test_show_as_json_has_the_record_the_lineage_and_the_summary(
    generations: list[str], log: Log, run: Run
) -> None:
    told = json.loads(run("compact", "show", "--json", "--context").stdout)

    assert told["lineage"] == generations
    assert told["generation"] == 2
    assert (told["id"], told["source_id"]) == (generations[2], generations[1])
    chain = log.messages(generations[2])
    assert told["summary"] == text_of(chain[2])
    assert [m["role"] for m in told["messages"]] == [m.role for m in chain]
    assert (told["values_lost"], told["lost"]) == (0, [])


def test_context_is_the_whole_conversation_role_by_role(
    talk: Talk, log: Log, models: Plugin, run: Run
) -> None:
    picture = llm.Attachment(type="image/png", content=b"\x89PNG chart")
    output = "level " * 2_000
    talk(
        [(f"When in {n}?", LONG.format(place="Ribe", n=n)) for n in range(4)]
        + [("Look it up", [Reply(calls=(("c1", "lookup", {"key": output}),)), "It is 1.5 m."])],
        system="You know the tides.",
        attachments=[picture],
    )
    llm_compact.compact(model="extractive", keep="1x")

    shown = run("compact", "show", "--context").stdout

    assert shown.startswith("[system]\nYou know the tides.\n\n[user]\nCompaction 1: ")
    assert f"lookup -> value of {output}" in shown
    assert shown.endswith("[assistant]\nIt is 1.5 m.\n\n")
    assert json.loads(run("compact", "show", "--context", "--json").stdout)["messages"]


def test_context_of_a_conversation_that_went_on_has_what_was_said_since(
    generations: list[str], models: Plugin, run: Run
) -> None:
    run("-c", "And tomorrow in Ribe?")

    assert "[user]\nAnd tomorrow in Ribe?" in run("compact", "show", "--context").stdout


def test_lost_values_are_told_where_they_were_recorded(
    generations: list[str], log: Log, run: Run
) -> None:
    nothing = run("compact", "show", "--lost")
    with log.db as db:
        table = db["compactions"]
        for column, type in (("values_found", int), ("values_lost", int), ("lost", str)):
            if column not in table.columns_dict:
                table.add_column(column, type)
        turn = list(table.rows)[-1]["turn_id"]
        lost = '[{"value": "06:15", "kind": "date"}, {"value": "café.md", "kind": "path"}]'
        table.update(turn, {"values_found": 9, "values_lost": 2, "lost": lost})

    assert nothing.stdout == ""
    assert run("compact", "show", "--lost").stdout == "date: 06:15\npath: café.md\n"
    assert "2 of 9 values" in run("compact", "show").stdout
    assert json.loads(run("compact", "show", "--json").stdout)["lost"][1]["kind"] == "path"


def test_looking_writes_nothing(generations: list[str], log: Log, run: Run) -> None:
    before = log.rows()

    for command in (["list"], ["show"], ["show", "--context"], ["show", "--lost"]):
        assert run("compact", *command).exit_code == 0

    assert log.rows() == before


def test_a_name_can_give_no_orders_to_a_terminal(talk: Talk, run: Run) -> None:
    talk([(f"\x1b[2J{n} water\nin Ribe?", LONG.format(place="Ribe", n=n)) for n in range(4)])
    llm_compact.compact(model="extractive")

    assert "\x1b" not in run("compact", "list").stdout
    assert len(run("compact", "list").stdout.splitlines()) == 1


def test_a_focus_may_begin_with_the_name_of_a_command_where_it_is_quoted(
    long_talk: str, run: Run, log: Log
) -> None:
    assert run("compact", "list", "of", "levels").exit_code == 2

    run("compact", "list of levels", "-m", "extractive")
    run("compact", "--focus", "show the levels", "-m", "extractive")

    instructions = [row["instructions"] for row in log.db["compactions"].rows]
    assert instructions == ["list of levels", "show the levels"]
