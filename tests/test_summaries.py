"""Summaries by a model, from the conversation to what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llm
import pytest
import yaml
from click.testing import Result
from conftest import LONG, Log, Talk, recorded
from llm.parts import ToolCallPart, ToolResultPart
from scripted import Plugin, Reply, Script, Scripted, ScriptedWithSchema

import llm_compact
from llm_compact.conversation import text_of
from llm_compact.language import language_of
from llm_compact.summarizers import has_same_provider
from llm_compact.summarizers.extractive import extract
from llm_compact.summarizers.model import ModelSummarizer
from llm_compact.summary import Head, Watch

Run = Callable[..., Result]

TOLD: dict[str, Any] = {
    "goal": "Know the tides of six places.",
    "role": "",
    "rules": [],
    "decisions": ["Times in UTC, because the tables have them; local time was rejected"],
    "done": ["High water in Esbjerg: 00:15"],
    "in_progress": [],
    "open": ["Skagen"],
    "findings": [],
    "errors": [],
    "exact_values": ["1.0 m"],
    "language": "English",
}
RENDERED = recorded(
    "## Goal\nKnow the tides of six places.\n\n"
    "## Decisions\n- Times in UTC, because the tables have them; local time was rejected\n\n"
    "## Asked and done\n- High water in Esbjerg: 00:15\n\n"
    "## Open\n- Skagen\n\n"
    "## Exact values\n- 1.0 m"
)
MARKDOWN = "## Goal\nKnow the tides."


def head_of(messages: list[llm.Message], **extra: Any) -> Head:
    fields: dict[str, Any] = {"previous": None, "language": "en", "room": 300, **extra}
    return Head(messages=messages, originals=messages, tokens=100, **fields)


def test_a_model_that_takes_a_schema_fills_it_and_the_summary_is_markdown(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [json.dumps(TOLD)]

    result = run("compact", "-c", "-m", "schematic")

    (sent,) = models.summer.sent
    assert set(sent.schema["properties"]) == set(TOLD)
    assert "as one JSON object" in sent.prompt and "## Goal" not in sent.prompt
    assert result.stdout == RENDERED + "\n"
    assert text_of(log.messages()[2]) == RENDERED


def test_what_is_shown_at_a_terminal_is_markdown_too(
    long_talk: str, models: Plugin, run: Run, terminal: None
) -> None:
    models.summer.replies = [json.dumps(TOLD)]

    assert run("compact", "-c", "-m", "schematic").stdout == RENDERED + "\n"


def test_a_model_that_takes_none_is_asked_for_markdown(
    long_talk: str, models: Plugin, run: Run
) -> None:
    run("compact", "-c", "-m", "summer")

    (sent,) = models.summer.sent
    assert sent.schema is None
    assert "as Markdown" in sent.prompt
    assert "## Standing rules of the user\nWhat the user laid down" in sent.prompt


@pytest.mark.parametrize("window, has_schema", [("512", False), ("3k", False), ("8k", True)])
def test_a_small_window_gets_no_schema(
    window: str, has_schema: bool, long_talk: str, models: Plugin, run: Run
) -> None:
    models.summer.replies = [json.dumps(TOLD)] if has_schema else []

    assert run("compact", "-c", "-m", "schematic", "--window", window).exit_code == 0

    assert [bool(sent.schema) for sent in models.summer.sent[-1:]] == [has_schema]


@pytest.mark.parametrize(
    "first",
    [
        '{"goal": "Tides", "open": [what]}',
        Reply(raises=ValueError("400: response_format is not supported")),
    ],
)
def test_json_that_fails_is_asked_for_once_more_as_markdown(
    first: Reply | str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [first, MARKDOWN]

    assert run("compact", "-c", "-m", "schematic").stdout == recorded(MARKDOWN) + "\n"
    assert [bool(sent.schema) for sent in models.summer.sent] == [True, False]


@pytest.mark.parametrize(
    "replies, reason",
    [
        (['{"goal": [oops]}', '{"goal": [oops]}'], "answered with JSON that can't be read"),
        ([json.dumps(TOLD)[:90]], "was cut off in the middle of its answer"),
        (["{}"], "answered with nothing"),
        (['{"goal": "", "done": ["(none)"]}'], "answered with nothing"),
        (['{"goal": "I\'m sorry, but I can\'t help with that."}'], "refused: I'm sorry"),
        ([Reply(json.dumps(TOLD), json={"finish_reason": "length"})], "cut off by its length"),
    ],
)
def test_json_that_is_no_summary_is_refused(
    replies: list[Reply | str], reason: str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = list(replies)
    before = log.rows()

    result = run("compact", "-c", "-m", "schematic")

    assert result.exit_code == 1
    assert reason in result.stderr
    assert log.rows() == before


def test_only_the_last_of_several_calls_fills_the_schema(
    talk: Talk, models: Plugin, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n) * 6) for n in range(30)])

    class Answers(list):  # type: ignore[type-arg]
        def pop(self, index: int = -1) -> Reply:
            return Reply(json.dumps(TOLD) if models.summer.sent[-1].schema else "A part.")

    models.summer.replies = Answers([""])

    assert run("compact", "-c", "-m", "schematic", "--window", "5k").exit_code == 0
    schemas = [bool(sent.schema) for sent in models.summer.sent]
    assert schemas == [False] * (len(schemas) - 1) + [True] and len(schemas) > 2


def test_what_came_is_shown_again_where_it_was_changed(
    long_talk: str, models: Plugin, run: Run, terminal: None
) -> None:
    models.summer.replies = ["**Goal**\nKnow the tides."]

    result = run("compact", "-c", "-m", "summer")

    assert result.stdout == recorded(f"**Goal**\nKnow the tides.\n{recorded(MARKDOWN)}\n")
    assert "Stored as:" in result.stderr


def agent_run(rounds: int) -> list[llm.Message]:
    messages = [llm.user("Fix the tide table, please.")]
    for n in range(rounds):
        call = ToolCallPart(name="read", arguments={"path": f"{n}.md"}, tool_call_id=str(n))
        result = ToolResultPart(name="read", output="tides", tool_call_id=str(n))
        messages += [llm.assistant(call), llm.tool_message(result)]
    return [*messages, llm.assistant("It is done.")]


def prompt_for(messages: list[llm.Message], **extra: Any) -> str:
    script = Script()
    ModelSummarizer(Scripted("summer", script)).summarize(head_of(messages, **extra), Watch())
    return script.sent[0].prompt or ""


def test_a_run_with_tools_and_a_chat_are_asked_for_what_matters_in_each() -> None:
    agent = prompt_for(agent_run(5))
    chat = prompt_for([llm.user("Hello, I am Ida."), llm.assistant("Hi Ida, how are you?")] * 5)

    assert "which tests pass and which fail" in agent and "of themselves" not in agent
    assert "what the user told of themselves" in chat and "which tests pass" not in chat


def test_the_headings_are_asked_for_in_the_language_of_the_conversation() -> None:
    prompt = prompt_for([llm.user("潮汐表在哪里？")], language="zh")

    assert "## 目标\nWhat the user wants" in prompt and "## Goal" not in prompt


def test_messages_have_the_same_number_in_each_generation() -> None:
    originals = [llm.user("One"), llm.assistant("Two"), llm.user("Three"), llm.assistant("Four")]
    script = Script()
    head = Head(originals[2:], "A summary.", originals, 100, "en", room=300, generation=2)

    ModelSummarizer(Scripted("summer", script)).summarize(head, Watch())

    assert "[3] user" in (script.sent[0].prompt or "")


def test_the_line_that_is_ours_is_not_shown_to_the_next_summarizer(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(6)])
    models.summer.replies = [MARKDOWN, f"{recorded('', 99, 9)}\n\n{MARKDOWN}"]
    run("compact", "-c", "-m", "summer")
    for n in range(3):
        models.chatty.replies = [LONG.format(place="Nuuk", n=n)]
        run("-c", f"And {n}?")

    run("compact", "-c", "-m", "summer", "--keep", "1x")

    assert "Know the tides." in models.summer.texts_sent()
    assert "Record of" not in models.summer.texts_sent()
    assert text_of(log.messages()[1]) == recorded(MARKDOWN, messages=16, generation=2)


RULE = "Never touch the main branch."


def test_a_rule_is_quoted_word_for_word_through_ten_generations(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk(
        [(f"Question {n}? {RULE if n == 1 else ''}", LONG.format(place="R", n=n)) for n in range(6)]
    )
    for generation in range(10):
        quoted = '\n\n## Rules\n- "never touch the main branch" [99]' if generation == 0 else ""
        models.summer.replies = [f"{MARKDOWN}{quoted}"]
        assert run("compact", "-c", "-m", "summer").exit_code == 0
        for n in range(3):
            models.chatty.replies = [LONG.format(place=f"Skagen {generation}", n=n)]
            run("-c", f"Question {generation}/{n}?")

    told = text_of(log.messages()[1])
    assert told.count('- "Never touch the main branch." [3]') == 1
    assert told.count("##") == 2


def test_from_original_summarizes_the_whole_lineage_anew(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(6)])
    models.summer.replies = ["The first summary, which is wrong.", MARKDOWN]
    run("compact", "-c", "-m", "summer")
    for n in range(6):
        models.chatty.replies = [LONG.format(place="Nuuk", n=n)]
        run("-c", f"Question 1/{n}?")

    result = run("compact", "-c", "-m", "summer", "--from-original")

    assert result.exit_code == 0
    sent = models.summer.texts_sent()
    assert "which is wrong" not in sent
    assert all(f"Question {n}?" in sent and f"Question 1/{n % 4}?" in sent for n in range(6))
    assert text_of(log.messages()[1]) == recorded(MARKDOWN, messages=20, generation=2)
    first, second = log.db["compactions"].rows
    assert (second["messages_summarized"], second["exchanges_summarized"]) == (20, 10)
    # Of all generations, and not of what the first one had left.
    assert second["tokens_before"] > 1.5 * first["tokens_before"]


@pytest.mark.parametrize("keep", [[], ["--keep", "9x"], ["--keep", "1x"]])
def test_from_original_needs_nothing_new_to_summarize(
    keep: list[str], talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(6)], system="Be brief")
    models.summer.replies = ["The first summary, which is wrong.", MARKDOWN]
    run("compact", "-c", "-m", "summer", "--keep", "1x")
    kept = log.messages()[-2:]

    result = run("compact", "-c", "-m", "summer", "--from-original", *keep)

    assert result.exit_code == 0, result.output
    assert all(f"Question {n}?" in models.summer.texts_sent() for n in range(5))
    assert "which is wrong" not in models.summer.texts_sent()
    assert text_of(log.messages()[2]) == recorded(MARKDOWN, messages=10, generation=2)
    assert log.messages()[3:] == kept
    assert "(5 exchanges summarized, 1 kept)" in result.stderr


def test_from_original_summarizes_each_round_once_where_the_tail_begins_inside_of_a_loop(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    calls = [Reply(calls=[(f"c{n}", "lookup", {"key": f"key {n} " * 40})]) for n in range(6)]
    talk([("Look it up, six times.", [*calls, "All looked up."])])
    models.summer.replies = ["The first summary, which is wrong.", MARKDOWN]
    run("compact", "-c", "-m", "summer", "--keep", "3m")
    kept = log.messages()[2:]

    result = run("compact", "-c", "-m", "summer", "--from-original", "--keep", "9x")

    assert result.exit_code == 0, result.output
    assert log.messages()[2:] == kept
    assert 1 < len(kept) < 14
    told = text_of(log.messages()[1])
    assert told == recorded(MARKDOWN, messages=14 - len(kept), generation=2)
    sent = models.summer.texts_sent()
    assert [f"key {n} " in sent for n in range(6)] == [
        f"key {n} " not in str(kept) for n in range(6)
    ]


def test_from_original_is_refused_where_the_log_lacks_the_originals(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(6)])
    models.summer.replies = [MARKDOWN]
    run("compact", "-c", "-m", "summer")
    for n in range(3):
        models.chatty.replies = [LONG.format(place="Nuuk", n=n)]
        run("-c", f"Question 1/{n}?")
    log.db["compactions"].delete_where()

    result = run("compact", "-c", "-m", "summer", "--from-original")

    assert result.exit_code == 1
    assert "does not have the original messages" in result.stderr
    assert len(models.summer.sent) == 1


SPOKEN = yaml.safe_load((Path(__file__).parent / "spoken.yaml").read_text("utf-8"))
ENGLISH = (
    "## Goal\nThe user wants to know the level of the water at each of the stations.\n"
    "## Done\n- It was told for all of them that the level is high, and when the tide was."
)


@pytest.fixture(params=["zh", "ja", "ko", "tr"])
def spoken(request: pytest.FixtureRequest, talk: Talk) -> str:
    """A conversation in another language than English. Its language."""
    said = SPOKEN[request.param]
    talk([(said["asked"].format(n=n), said["answered"].format(n=n) * 5) for n in range(8)])
    return str(request.param)


def prose_in(language: str, lines: int = 3) -> str:
    return "\n".join(SPOKEN[language]["answered"].format(n=n) for n in range(lines))


def test_extractive_writes_in_the_language_of_the_conversation(
    spoken: str, log: Log, run: Run
) -> None:
    from llm_compact.check import is_in_language
    from llm_compact.language import words

    assert run("compact", "-c", "-m", "extractive").exit_code == 0

    told = text_of(log.messages()[1])
    said = words(spoken)
    assert {line[3:] for line in told.splitlines() if line.startswith("## ")} <= set(said.values())
    assert f"## {said['requests']}" in told
    assert is_in_language(told, spoken)
    if spoken != "tr":
        assert not any(word in told for word in ("Compaction", "Record", "user:"))


def test_a_summary_in_english_of_another_conversation_is_asked_for_again(
    spoken: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [ENGLISH, prose_in(spoken)]

    assert run("compact", "-c", "-m", "summer").exit_code == 0

    again = models.summer.sent[1].prompt
    assert "It is in the wrong language." in again and "level of the water" in again
    assert prose_in(spoken) in text_of(log.messages()[1])


@pytest.mark.parametrize("options", [(), ("--window", "1k"), ("--max-summary", "200")])
def test_a_summary_that_stays_english_is_refused(
    options: tuple[str, ...], spoken: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [ENGLISH] * 9
    before = log.rows()

    result = run("compact", "-c", "-m", "summer", *options)

    assert result.exit_code == 1
    assert "which is the language of the conversation" in result.stderr
    assert log.rows() == before


def test_a_chinese_summary_of_an_english_conversation_is_refused(
    long_talk: str, models: Plugin, run: Run
) -> None:
    models.summer.replies = [prose_in("zh")] * 2

    result = run("compact", "-c", "-m", "summer")

    assert result.exit_code == 1
    assert "did not write in English" in result.stderr


def save_template(user_path: Path, text: str) -> None:
    (user_path / "templates").mkdir(parents=True, exist_ok=True)
    (user_path / "templates" / "minutes.yaml").write_text(text)


def test_a_template_works_on_every_path_and_no_brace_is_lost(
    spoken: str, models: Plugin, run: Run, user_path: Path
) -> None:
    save_template(user_path, "prompt: 'MINUTES {} {\"a\": {x}} $input'")
    answers = {"wrong language": prose_in(spoken, lines=15), "too long": prose_in(spoken)}

    class Answers(list):  # type: ignore[type-arg]
        def pop(self, index: int = -1) -> Reply:
            sent = models.summer.sent[-1].prompt or ""
            return Reply(next((text for told, text in answers.items() if told in sent), ENGLISH))

    models.summer.replies = Answers([""])

    result = run(
        *("compact", "-c", "-m", "schematic", "-t", "minutes", "--window", "1k"),
        *("--max-summary", "230", "keep {the} $level"),
    )

    assert result.exit_code == 0, result.output
    prompts = [sent.prompt or "" for sent in models.summer.sent]
    assert all(prompt.startswith('MINUTES {} {"a": {x}} ===') for prompt in prompts)
    assert all(
        prompt.endswith("Look after this above all: keep {the} $level") for prompt in prompts
    )
    assert not any(sent.schema for sent in models.summer.sent)
    for note in ("This is part 1 of", "Make one record", "wrong language", "too long"):
        assert any(note in prompt for prompt in prompts)


def test_a_stored_template_is_used_by_hand_and_by_itself(
    long_talk: str, models: Plugin, log: Log, run: Run, user_path: Path
) -> None:
    save_template(user_path, "model: summer\nprompt: 'MINUTES {} $input'")
    assert run("compact", "settings", "set", "template", "minutes").exit_code == 0
    models.summer.replies = [MARKDOWN, MARKDOWN]

    by_hand = run("compact", "-c")
    models.chatty.replies = ["At six."]
    by_itself = run("-c", "--auto-threshold", "200", f"And? {LONG * 2}")

    assert (by_hand.exit_code, by_itself.exit_code) == (0, 0), by_itself.output
    assert {str(sent.prompt)[:11] for sent in models.summer.sent} == {"MINUTES {} "}
    versions = [row["prompt_version"] for row in log.db["compactions"].rows]
    assert versions == ["template minutes"] * 2
    assert run("compact", "--cid", long_talk, "-m", "extractive", "--again").exit_code == 0


LETTERS = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6lM9o"
SECRET = f"sk-proj-{LETTERS}"
PASSWORD = "hunter2-and-3"


@pytest.fixture
def secretive(talk: Talk) -> str:
    """A conversation in which a key and a password were said. Its id."""
    said = [f"My key is {SECRET}, use it.", f"The password: {PASSWORD}", "And now the tides?"]
    return talk([(said[n % 3], LONG.format(place="Ribe", n=n)) for n in range(9)])


def test_another_provider_is_sent_no_secret(
    secretive: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [MARKDOWN]

    assert run("compact", "-c", "-m", "elsewhere", f"mind {SECRET}").exit_code == 0

    sent = models.summer.texts_sent()
    assert SECRET not in sent and PASSWORD not in sent
    assert "My key is [redacted: API key], use it." in sent
    assert "password: [redacted: password]" in sent
    # The original, and what is kept word for word, are as they were.
    assert any(SECRET in text_of(message) for message in log.messages(secretive))


def test_the_conversations_own_provider_knows_it_already(
    secretive: str, models: Plugin, run: Run
) -> None:
    models.summer.replies = [MARKDOWN]

    run("compact", "-c", "-m", "summer")

    assert SECRET in models.summer.texts_sent()


@pytest.mark.parametrize("model", ["summer", "schematic", "elsewhere", "extractive"])
def test_no_secret_is_in_a_summary(
    model: str, secretive: str, models: Plugin, log: Log, run: Run
) -> None:
    told = f"They log in with {PASSWORD}, and the key is {SECRET}."
    models.summer.replies = [json.dumps({"goal": told}) if model == "schematic" else told]

    assert run("compact", "-c", "-m", model).exit_code == 0

    summary = text_of(log.messages()[1])
    assert SECRET not in summary and PASSWORD not in summary and LETTERS[:20] not in summary
    assert "[redacted: " in summary


def test_who_has_the_same_provider(models: Plugin) -> None:
    assert has_same_provider("summer", "chatty")
    assert has_same_provider("chatty", "chatty")
    assert has_same_provider("not-installed", "not-installed")
    assert not has_same_provider("elsewhere", "chatty")
    assert not has_same_provider("summer", "not-installed")
    assert not has_same_provider("extractive", "extractive")


def test_a_summary_from_python_says_what_it_is(long_talk: str, models: Plugin) -> None:
    models.summer.replies = [MARKDOWN]

    assert llm_compact.compact(model="summer").summary == recorded(MARKDOWN)


def test_the_first_line_of_an_offline_summary_says_what_it_is() -> None:
    messages = agent_run(5)

    first = extract(head_of(messages, language=language_of(messages), generation=3)).splitlines()[0]

    assert first == f"Record of {len(messages)} earlier messages, not instructions. Compaction 3."


def test_a_schema_is_followed_by_a_model_of_any_window() -> None:
    script = Script([json.dumps(TOLD)])

    answer = ModelSummarizer(ScriptedWithSchema("schematic", script)).summarize(
        head_of(agent_run(3)), Watch()
    )

    assert recorded(answer.text) == RENDERED


@pytest.mark.parametrize(
    "answer", ["## Goal\nTides \ud83d of Ribe.", '{"goal": "Tides \\ud83d of Ribe."}']
)
def test_half_of_a_character_is_told_as_one_that_is_missing(
    answer: str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [answer]

    result = run("compact", "-c", "-m", "summer")

    assert result.exit_code == 0, result.output
    assert "Tides \ufffd of Ribe." in text_of(log.messages()[2])


def test_a_password_that_is_named_once_is_a_secret_wherever_it_stands(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    password = "Tide2Water99"
    said = [(f"The password: {password}", f"I try {password}."), (f"And {password} again?", "Yes.")]
    talk([*said, *((f"And {n}?", LONG.format(place="Ribe", n=n)) for n in range(5))])
    models.summer.replies = ["## Goal\nKnow the tides of Ribe."]

    result = run("compact", "-c", "-m", "elsewhere", f"where {password} is used", "--json")

    assert result.exit_code == 0, result.output
    assert password not in models.summer.texts_sent()
    assert password not in result.stdout
    assert password not in str(log.rows()["compactions"])
