"""A user's standing rules are found, and stand word for word in what a model has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, Talk
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import Message
from rules_said import NO_RULES, RULES
from scripted import Plugin

import llm_compact
from llm_compact.conversation import text_of
from llm_compact.language import words
from llm_compact.rules import chosen_rules, rules_tokens, standing_rules, with_rules
from llm_compact.summarizers.extractive import extract
from llm_compact.summary import Head, sections_of
from llm_compact.tokens import count_text

Run = Callable[..., Result]


def found(*said: str) -> list[str]:
    return [rule.text for rule in standing_rules([llm.user(text) for text in said])]


def head(messages: Sequence[Message], room: int = 2_000, language: str = "en") -> Head:
    return Head(messages, None, messages, 10_000, language, room)


@pytest.mark.parametrize("language", RULES)
def test_a_rule_is_found_in_the_users_language(language: str) -> None:
    assert found(*RULES[language]) == RULES[language]


@pytest.mark.parametrize("language", NO_RULES)
def test_what_only_tells_or_asks_something_is_no_rule(language: str) -> None:
    assert found(*NO_RULES[language]) == []


def test_only_the_user_lays_down_rules() -> None:
    rule = "Never touch the main branch."
    output = llm.parts.ToolResultPart(name="cat", output=rule)
    messages = [llm.user("Hi"), llm.assistant(rule), llm.tool_message(output), llm.system(rule)]

    assert standing_rules(messages) == []


def test_a_rule_in_code_or_in_a_quote_is_nobodys() -> None:
    assert found("See:\n```\nNever touch main.\n```\n> Always use UTC.\nWhat is this?") == []


def test_a_later_rule_comes_last_also_where_it_was_said_before() -> None:
    german, french = "Answer in German.", "From now on answer in French instead."

    assert found(german, french) == [german, french]
    assert found(german, french, german) == [french, german]


def test_a_short_message_of_rules_is_quoted_as_a_whole() -> None:
    whole = "Never touch main. It belongs to Ida. Always ask her first."

    assert found(whole) == [whole]


def test_a_request_beside_a_rule_is_not_quoted_with_it() -> None:
    assert found("When was high water in Ribe? Always give times in UTC.") == [
        "Always give times in UTC."
    ]


def test_the_items_of_a_list_of_rules_are_rules_however_they_are_worded() -> None:
    said = (
        "Three rules for today:\n- short sentences\n- times in UTC\n- main is off limits\n\nGo on!"
    )

    assert found(said) == ["short sentences", "times in UTC", "main is off limits"]
    assert found("We have three boats:\n- the Ebba\n- the long one\n- the red one") == []


def test_an_item_is_never_quoted_without_the_order_that_it_belongs_to() -> None:
    assert found("Never do this:\n- push to main\n- delete a backup\nWhat is next?") == [
        "Never do this: push to main",
        "Never do this: delete a backup",
    ]


def test_what_a_model_left_out_is_added_with_the_number_of_its_message() -> None:
    messages = [
        llm.user("Always give times in UTC."),
        llm.assistant("Yes."),
        llm.user("Never touch the main branch."),
        llm.assistant("No."),
    ]
    summary = '## Standing rules of the user\n- "Always give\n  times in UTC." [1]\n\n## Done\nAll.'

    added = with_rules(summary, head(messages))

    assert added == (
        '## Standing rules of the user\n- "Always give\n  times in UTC." [1]\n'
        '- "Never touch the main branch." [3]\n\n## Done\nAll.'
    )
    assert with_rules(added, head(messages)) == added


@pytest.mark.parametrize("language", RULES)
def test_a_summary_without_that_section_gets_one_in_its_language(language: str) -> None:
    messages = [llm.user(text) for text in RULES[language]]

    added = with_rules("Prose.", head(messages, room=20_000, language=language))

    assert all(rule in added for rule in RULES[language])
    assert [heading for heading, _ in sections_of(added)] == ["", words(language)["rules"]]


def test_the_exact_values_stay_behind_a_section_of_rules_that_is_added() -> None:
    written = "## Goal\nThe tides.\n\n## Exact values\n- tide_gauge_1"

    titles = [
        title for title, _ in sections_of(with_rules(written, head([llm.user("Never push.")])))
    ]

    assert titles == ["Goal", "Standing rules of the user", "Exact values"]


def test_what_is_pinned_is_not_quoted_a_second_time() -> None:
    messages = [llm.user("Never touch the main branch.")]
    pinned = Head(
        messages, None, messages, 9_000, "en", 900, pins=("Never touch the main branch.",)
    )

    assert with_rules("Prose.", pinned) == "Prose."


@given(st.integers(0, 400), st.integers(0, 60))
def test_rules_take_a_quarter_of_the_room_and_half_of_it_at_most(room: int, number: int) -> None:
    messages = [llm.user(f"Never touch the branch of station {n}.") for n in range(number)]
    crowded = head(messages, room)

    long = "Prose. " * room
    added = count_text(with_rules("Prose.", crowded)) - count_text("Prose.")
    beside_long = count_text(with_rules(long, crowded)) - count_text(long)

    assert beside_long <= rules_tokens(crowded) + 1 <= room // 4 + 3 or beside_long == 0
    assert added <= room // 2 + 2


def test_where_room_is_short_the_explicit_and_the_latest_rules_stay() -> None:
    readme = "Always run the linter before you push. " + LONG * 6
    said = [readme, "Never touch main.", "Make sure the tests pass.", "Always use UTC."]

    chosen = chosen_rules(head([llm.user(text) for text in said]), 37)

    assert [rule.text for rule in chosen] == ["Never touch main.", "Always use UTC."]


def test_rules_do_not_fade_over_the_generations(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    rules = [f"Never touch the branch of station {n}." for n in range(20)]
    talk([(rule, LONG.format(place="Ribe", n=n)) for n, rule in enumerate(rules)])

    for number in range(4):
        run("-c", f"And what about {number}?")
        models.summer.replies = ["## Goal\nKnow the tides of many places."]
        done = run("compact", "-c", "-m", "summer", "--keep", "1x", "--max-summary", "1500")
        assert done.exit_code == 0, done.stderr

    summary = text_of(log.messages()[1])
    assert [summary.count(rule) for rule in rules] == [1] * 20
    assert done.stdout == f"{summary}\n"


def test_max_summary_is_kept_with_the_rules_included(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Never touch the branch {n}.", LONG.format(place="Ribe", n=n)) for n in range(8)])
    models.summer.replies = ["word " * 100, "word " * 50]

    result = run("compact", "-c", "-m", "summer", "--max-summary", "100")

    assert result.exit_code == 0, result.stderr
    row = next(log.db["compactions"].rows)
    assert row["summary_tokens"] <= 100
    assert len(models.summer.sent) == 2
    assert "Never touch" in text_of(log.messages()[1])


def test_an_offline_summary_quotes_them_once(talk: Talk) -> None:
    rule = "Never touch the main branch."
    talk([(rule, LONG.format(place="Ribe", n=1))] + [("When?", LONG.format(place="R", n=2))] * 4)

    summary = llm_compact.compact(model="extractive").summary

    section = dict(sections_of(summary))[words("en")["rules"]]
    assert section == [f'"{rule}" [1]']


def test_a_rule_that_only_the_previous_summary_quotes_is_carried_on() -> None:
    # A model understood it as one; or the log of the message is not at hand.
    previous = '## Standing rules of the user\n- "Ich mag keine Tabellen" [1]\n\n## Goal\nTides.'
    later = replace(head([llm.user("Never touch main."), llm.assistant(LONG)]), previous=previous)

    quoted = ['"Ich mag keine Tabellen" [1]', '"Never touch main." [1]']

    assert dict(sections_of(extract(later)))[words("en")["rules"]] == quoted
    assert dict(sections_of(with_rules("## Goal\nTides.", later)))[words("en")["rules"]] == quoted


def test_an_offline_summary_quotes_a_long_rule_whole() -> None:
    rule = "Never write to the table of the readings, " + "not even by a script " * 12 + "of yours."
    said = [llm.user(rule), llm.assistant(LONG), llm.user("When?"), llm.assistant(LONG)] * 4

    assert f'- "{rule}" [13]' in extract(head(said))


def test_rules_may_take_what_the_prose_leaves_free_and_what_is_left_out_is_told(
    talk: Talk, models: Plugin, run: Run
) -> None:
    rules = [f"Never touch the branch of station {n}." for n in range(40)]
    answered = [(rule, LONG.format(place="Ribe", n=n)) for n, rule in enumerate(rules)]
    talk([*answered, ("When?", LONG), ("And why?", LONG)])
    models.summer.replies = ["## Goal\nKnow the tides of many places."]

    data = json.loads(run("compact", "-c", "-m", "summer", "--json").stdout)

    quoted = [rule for rule in rules if rule in data["summary"]]
    lost = [item["value"] for item in data["lost"] if item["kind"] == "rule"]
    assert quoted == rules[-len(quoted) :] and len(quoted) >= 8
    assert lost == rules[: -len(quoted)]
    assert data["values_lost"] == len(data["lost"])


@pytest.mark.parametrize(
    "said",
    [
        "Run the tests and fix what fails.",
        "Only change files X in this step.",
        "Don't push yet.",
        "No emojis this time.",
        "Leave the config folder alone for now.",
        "Antworte diesmal auf Deutsch.",
        "Utilise la deuxième option cette fois.",
        "这次不要写注释。",
    ],
)
def test_what_holds_for_one_step_is_no_standing_rule(said: str) -> None:
    assert found(said) == []
