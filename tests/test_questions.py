"""What is asked about the head of a conversation, and which answers are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conversations import conversations
from facts_said import FACTS, VALUES
from hypothesis import given
from llm.parts import Message, TextPart

from llm_compact.questions import GAP, Question, Sentence, draw_questions, is_right, read_answers
from llm_compact.summary import Head
from llm_compact.transcript import by_reference


def head_of(*said: str, role: str = "user") -> Head:
    messages = [Message(role=role, parts=[TextPart(text=text)]) for text in said]
    return Head(messages, None, messages, 1_000, "en", 300)


def test_questions_are_about_all_kinds_of_facts_and_always_the_same() -> None:
    head = head_of(*FACTS, "And that is it, as far as I can tell from here.")

    drawn = draw_questions(head)

    assert [(q.kind, q.expected) for q in drawn] == [
        ("goal", "service"),
        ("rule", "branch"),
        ("decision", "database"),
        ("name", VALUES[3]),
        ("number", VALUES[4]),
    ]
    assert draw_questions(head) == drawn


def test_a_sentence_that_fits_several_values_is_not_asked_for() -> None:
    head = head_of("Read the file a/one.py for me.", "Read the file a/two.py for me.")

    assert all("a/" not in question.expected for question in draw_questions(head))


def test_no_question_gives_away_another_ones_answer() -> None:
    head = head_of(
        "Please look at src/app.py for me today.",
        "The bug in src/app.py came with release 4.5.6 last week.",
        "We decided that release 4.5.6 is bad, because src/app.py broke.",
    )

    drawn = draw_questions(head)

    assert drawn
    for question in drawn:
        for other in drawn:
            assert question is other or question.expected not in other.text


def test_a_long_head_is_asked_from_all_over() -> None:
    head = head_of(
        *(f"In step {n} we wrote part_{n}_{'abcdefghij'[n // 10]}.py for it." for n in range(100))
    )

    places = [question.sentence.message for question in draw_questions(head)]

    assert len(places) >= 7
    assert min(places) <= 10 and max(places) >= 90


def test_what_a_document_says_or_how_long_it_is_is_not_asked_for() -> None:
    document = "The harbour of Nuuk has 4,711 berths and a pier. " * 50
    said = [*FACTS, f"{document}\n\nSum this up for me, and mention the pier."]
    head = head_of(*said)
    messages = by_reference(head.originals, [document])

    drawn = draw_questions(replace(head, originals=messages))

    assert drawn
    assert not any("fragment" in q.text or "4,711" in q.expected for q in drawn)


def test_a_head_that_says_nothing_has_no_questions() -> None:
    assert draw_questions(head_of("Hi", "Ok")) == []


@given(conversations())
def test_any_conversation_has_at_most_eight_questions_and_each_gap_has_one_value(
    chain: list[Message],
) -> None:
    head = Head(chain, None, chain, 1_000, "en", 300)

    drawn = draw_questions(head)

    assert len(drawn) <= 8
    for question in drawn:
        assert question.text.count(GAP) == 1
        assert question.text.replace(GAP, question.expected) == question.sentence.text
        assert is_right(question, question.expected)
        assert not is_right(question, question.text)


@pytest.mark.parametrize(
    "text",
    [
        "1: a.py\n2: 15 m\n3: -",
        "Sure!\n1. a.py\n2. 15 m\n3. -",
        "**1:** a.py\n\n**2:** 15 m\n",
        "Answer 1: a.py\nAnswer 2: 15 m",
        "```\n1) a.py\n2) 15 m\n```",
        '{"1": "a.py", "2": "15 m"}',
        '["a.py", "15 m", null]',
        '```json\n{"answers": [{"number": 1, "answer": "a.py"}, {"answer": "15 m"}]}\n```',
        "<think>1: b.py?</think>\n1：a.py\n2：15 m",
        "1:\na.py\n2:\n15 m",
    ],
)
def test_answers_are_read_in_many_forms(text: str) -> None:
    answers = read_answers(text, 3)

    assert [answer.strip("* ") for answer in answers[:2]] == ["a.py", "15 m"]
    assert answers[2] in ("", "-", "None")


def test_the_answer_to_a_single_question_needs_no_number() -> None:
    assert read_answers("a.py", 1) == ["a.py"]
    assert read_answers("I like the sea.", 2) == ["", ""]


@pytest.mark.parametrize(
    "expected, answer, right",
    [
        ("a/b.py", "`a/b.py`.", True),
        ("a/b.py", "It is A/B.PY, I think", True),
        ("a/b.py", "a/b.pyc", False),
        ("15", "2015", False),
        ("1.5", "1.55", False),
        ("1.5", "2.1.5", False),
        ("13,437", "13437", True),
        ("15 m", "１５ m", True),
        ("港口", "在港口。", True),
        ("main", "maintenance", False),
        ("a/b.py", "-", False),
        ("a/b.py", "", False),
        ("a/b.py", "All that I have: " + "c.py " * 40 + "a/b.py", False),
    ],
)
def test_an_answer_is_right_if_it_has_the_value_as_a_whole(
    expected: str, answer: str, right: bool
) -> None:
    sentence = Sentence(f"It lives in {expected} since today", 1, "user")

    assert is_right(Question("name", sentence, expected), answer) is right
