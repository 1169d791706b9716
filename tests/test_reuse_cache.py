"""A summary from the conversation as its model was sent it, so that a provider's cache is used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, Talk, recorded
from llm.parts import Message
from old_log import OldLog
from scripted import Plugin, Reply, Scripted, Toolkit, lookup, registered
from test_any_length import save_template
from test_hook import OldAdapters, Seen, said_in_messages

import llm_compact
from llm_compact.conversation import history_of, text_of
from llm_compact.errors import SummarizerError
from llm_compact.prefix import Prefix, live_prefix, logged_prefix
from llm_compact.settings import store_setting
from llm_compact.summarizers.prompts import prompts_for

Run = Callable[..., Result]

VERSION = prompts_for(None).version
SUMMARY = "## Goal\nKnow the tides of six places."
CALL = Reply(calls=[("call-9", "lookup", {"key": "tides"})])
PLACES = ["Esbjerg", "Nuuk", "Torshavn", "Ribe", "Hvide Sande", "Skagen"]


def as_sent(messages: Sequence[Message]) -> list[str]:
    """Each message as bytes, so that nothing can differ unseen."""
    return [json.dumps(message.to_dict(), sort_keys=True) for message in messages]


def is_from_conversation(prompt: llm.Prompt) -> bool:
    return len(prompt.messages) > 2


def declared(prompt: llm.Prompt) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "description": t.description, "input_schema": t.input_schema}
        for t in prompt.tools
    ]


@pytest.fixture
def tool_talk(talk: Talk) -> str:
    """Four exchanges with a call of a tool in each."""
    return talk(
        [
            (
                f"When was high water in {place}?",
                [
                    Reply(calls=[(f"call-{place}", "lookup", {"key": place})], reasoning="Hm."),
                    LONG.format(place=place, n=3),
                ],
            )
            for place in PLACES[:4]
        ],
        system="You know the tides.",
        tools=[lookup, Toolkit("/tides")],
    )


# What is sent


def test_what_is_sent_begins_as_the_last_request_did(
    models: Plugin, log: Log, run: Run, talk: Talk
) -> None:
    conversation = llm.get_model("chatty").conversation(tools=[lookup, Toolkit("/tides")])
    for n, place in enumerate(PLACES):
        call = Reply(calls=[(f"call-{n}", "lookup", {"key": place})], reasoning="Hm.")
        models.chatty.replies = [call, LONG.format(place=place, n=n)]
        response = conversation.chain(
            f"When was high water in {place}?", system="You know the tides." if n == 0 else None
        )
        response.text()
        response.log_to_db(log.db)
    last = models.chatty.sent[-1]
    models.chatty.sent.clear()
    models.chatty.replies = [SUMMARY]

    result = run("compact", "-c", "--reuse-cache")

    assert result.exit_code == 0, result.output
    (sent,) = models.chatty.sent
    *before, request = sent.messages
    assert as_sent(before) == as_sent(last.messages)[: len(before)]
    assert len(before) == 1 + 4 * 4
    assert request.role == "user" and text_of(request) == sent.prompt
    assert "When was high water" not in sent.prompt and "## Goal" in sent.prompt
    assert declared(sent) == declared(last) != []
    assert sent.schema is None


def test_tools_are_declared_and_none_can_run(
    tool_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [SUMMARY]

    assert run("compact", "-c", "--reuse-cache").exit_code == 0

    (sent,) = models.chatty.sent
    assert [tool.name for tool in sent.tools] == ["lookup", "Toolkit_whereami"]
    assert [tool.implementation for tool in sent.tools] == [None, None]


def test_what_is_stored_is_the_same_as_from_a_transcript(
    tool_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [SUMMARY, SUMMARY]

    assert run("compact", "-c", "--reuse-cache").exit_code == 0
    reused = log.messages()
    assert run("compact", "--cid", tool_talk, "--again").exit_code == 0

    assert [is_from_conversation(prompt) for prompt in models.chatty.sent] == [True, False]
    said = [said_in_messages(chain) for chain in (reused, log.messages())]
    assert said[0] == said[1]
    first, second = log.db["compactions"].rows
    assert (first["prompt_version"], second["prompt_version"]) == (f"{VERSION}, 1-behind", VERSION)
    told = ("messages_summarized", "messages_kept", "tokens_after", "values_lost", "calls")
    assert [first[name] for name in told] == [second[name] for name in told]


def test_a_second_generation_is_sent_with_the_summary_that_it_begins_with(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [SUMMARY, LONG, "## Goal\nKnow the tides of more places."]
    assert run("compact", "-c", "--reuse-cache").exit_code == 0
    assert run("-c", "And in Vejle?").exit_code == 0
    last = log.messages()

    result = run("compact", "-c", "--reuse-cache", "--keep", "1x")

    assert result.exit_code == 0, result.output
    *before, _ = models.chatty.sent[-1].messages
    assert as_sent(before) == as_sent(last)[: len(before)]
    assert text_of(before[2]) == recorded(SUMMARY, 8)
    assert "The first answer above is the record" in models.chatty.sent[-1].prompt
    assert history_of(log.messages()).summary.marker.generation == 2  # type: ignore[union-attr]


def test_a_cut_amid_a_tool_loop_ends_with_a_round(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    rounds = [Reply(LONG, calls=[(f"call-{n}", "lookup", {"key": str(n)})]) for n in range(8)]
    talk([("Look all of it up.", [*rounds, "Done."])])
    last = log.messages()
    models.chatty.replies = [SUMMARY]

    assert run("compact", "-c", "--reuse-cache", "--keep", "4m").exit_code == 0

    *before, _ = models.chatty.sent[-1].messages
    assert as_sent(before) == as_sent(last)[: len(before)]
    assert before[-1].role == "tool"


def test_the_focus_is_in_the_request(long_talk: str, models: Plugin, run: Run) -> None:
    models.chatty.replies = [SUMMARY]

    assert run("compact", "-c", "--reuse-cache", "the berths {x} $form").exit_code == 0

    assert "above all: the berths {x} $form" in models.chatty.sent[-1].prompt


def test_a_template_is_the_request(
    long_talk: str, models: Plugin, log: Log, run: Run, user_path: Path
) -> None:
    text = "system: Be a {clerk}\nprompt: 'Minutes of $input, please'\n"
    save_template(user_path, "minutes", text)
    models.chatty.replies = [SUMMARY]

    assert run("compact", "-c", "--reuse-cache", "-t", "minutes").exit_code == 0

    (sent,) = models.chatty.sent
    assert is_from_conversation(sent)
    assert sent.prompt.startswith(
        "Be a {clerk}\n\nMinutes of (the conversation above), please\n\nThis is about"
    )
    assert next(log.db["compactions"].rows)["prompt_version"] == "template minutes, 1-behind"


def test_the_options_are_those_of_the_conversation_but_none_that_keeps_from_a_summary(
    models: Plugin, log: Log, run: Run, talk: Talk
) -> None:
    class Warm(llm.Options):
        warmth: int | None = None
        max_tokens: int | None = None
        json_object: bool | None = None
        prefill: str | None = None
        stop: str | None = None

    class Model(Scripted):
        Options = Warm

    with registered(Models(Model("warm", models.summer))):
        conversation = llm.get_model("warm").conversation()
        for n, place in enumerate(PLACES):
            models.summer.replies = [LONG.format(place=place, n=n)]
            response = conversation.prompt(
                f"{place}?", warmth=7, max_tokens=50, json_object=True, prefill="{", stop="##"
            )
            response.text()
            response.log_to_db(log.db)
        models.summer.replies = [SUMMARY]

        assert run("compact", "-c", "--reuse-cache").exit_code == 0

    options = models.summer.sent[-1].options.model_dump(exclude_none=True)
    assert options == {"warmth": 7}


def test_adapters_that_read_responses_are_shown_the_conversation(
    old: Seen, log: Log, run: Run
) -> None:
    conversation = llm.get_model("old").conversation()
    for n, place in enumerate(PLACES):
        old.script.replies = [LONG.format(place=place, n=n)]
        response = conversation.prompt(
            f"When was high water in {place}?", system="You know the tides." if n == 0 else None
        )
        response.text()
        response.log_to_db(log.db)
    last = old.requests[-1]
    old.script.replies = [SUMMARY]

    assert run("compact", "-c", "--reuse-cache").exit_code == 0

    *before, request = old.requests[-1]
    assert before == last[: len(before)] and len(before) == 1 + 2 * 4
    assert request[0] == "user" and "## Goal" in request[1]


def test_a_log_of_an_older_llm_is_sent_with_the_tools_of_its_time(
    user_path: Path, models: Plugin, run: Run
) -> None:
    old = OldLog(user_path / "logs.db", "0.31")
    cid = old.conversation()
    for n, place in enumerate(PLACES):
        tools = [("lookup", "scripted_models")]
        old.response(cid, f"And {place}?", LONG.format(place=place, n=n), tools=tools)
    models.chatty.replies = [SUMMARY]

    result = run("compact", "-c", "--reuse-cache")

    assert result.exit_code == 0, result.output
    (sent,) = models.chatty.sent
    assert is_from_conversation(sent)
    assert [tool.name for tool in sent.tools] == ["lookup"]


# Where it can't be sent


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (CALL, "answered with a tool call instead of a summary"),
        (Reply(raises=ValueError("prompt is too long: 9 tokens > 4096 maximum")), "failed: prompt"),
        (Reply(raises=ValueError("no tools were declared")), "failed: no tools were declared"),
        ("I'm sorry, I only talk about tides.", "refused: I'm sorry"),
    ],
)
def test_an_answer_that_is_no_summary_is_followed_by_a_transcript_once(
    answer: Reply | str, told: str, tool_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [answer, SUMMARY]

    result = run("compact", "-c", "--reuse-cache", "--json")

    assert result.exit_code == 0, result.output
    reason, closing = result.stderr.splitlines()[:2]
    assert reason.startswith("Summarizing from a transcript instead of what the provider")
    assert told in reason and closing.startswith("Compacted ")
    assert [is_from_conversation(prompt) for prompt in models.chatty.sent] == [True, False]
    row = next(log.db["compactions"].rows)
    assert (row["calls"], row["prompt_version"]) == (2, VERSION)
    assert json.loads(result.stdout)["usage"]["calls"] == 2


def test_what_fails_both_ways_is_told_and_nothing_is_written(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [Reply(raises=ValueError("no key")) for _ in range(2)]
    before = log.rows()

    result = run("compact", "-c", "--reuse-cache")

    assert result.exit_code == 1
    assert "The summarizer chatty failed: no key" in result.stderr.splitlines()[-1]
    assert len(models.chatty.sent) == 2
    assert log.rows() == before


def test_what_does_not_fit_the_window_is_not_sent(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(30)])

    result = run("compact", "-c", "--reuse-cache", "--window", "2k")

    assert result.exit_code == 0, result.output
    assert result.stderr.count("because chatty has a window of 2,000 tokens, and") == 1
    assert not any(map(is_from_conversation, models.chatty.sent))
    assert len(models.chatty.sent) > 1


def test_a_window_that_an_overflow_names_is_used_for_the_transcript(
    talk: Talk, models: Plugin, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(30)])
    named = "This model's maximum context length is 2000 tokens, however you requested 9000"
    models.chatty.replies = [Reply(raises=ValueError(named))]

    assert run("compact", "-c", "--reuse-cache").exit_code == 0

    first, *others = models.chatty.sent
    assert is_from_conversation(first) and len(others) > 2
    assert not any(map(is_from_conversation, others))


def test_a_tool_that_the_provider_runs_is_not_declared_again(
    models: Plugin, log: Log, run: Run
) -> None:
    class Search(llm.ServerSideTool):
        """Search the web"""

        name = "web_search"

    class Model(Scripted):
        supported_server_side_tools = (Search,)

    with registered(Models(Model("searching", models.summer))):
        conversation = llm.get_model("searching").conversation(tools=[Search()])
        for n, place in enumerate(PLACES):
            models.summer.replies = [LONG.format(place=place, n=n)]
            response = conversation.prompt(f"{place}?")
            response.text()
            response.log_to_db(log.db)
        assert live_prefix(models.summer.sent[-1]).run_by_provider == ("web_search",)
        models.summer.sent.clear()
        models.summer.replies = [SUMMARY]

        result = run("compact", "-c", "--reuse-cache")

    assert result.exit_code == 0, result.output
    assert "because searching would run web_search by itself" in result.stderr
    (sent,) = models.summer.sent
    assert sent.tools == [] and not is_from_conversation(sent)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-m", "summer"], "summer can't use what the provider of chatty has in its cache. Leave"),
        (["-m", "extractive"], "extractive can't use what the provider of chatty has"),
        (["-m", "summer", "--dry-run"], "summer can't use what the provider of chatty has"),
        (["--from-original"], "The messages that --from-original summarizes are not sent any more"),
    ],
)
def test_what_no_cache_can_have_is_refused(
    arguments: list[str], told: str, long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    before = log.rows()

    result = run("compact", "-c", "--reuse-cache", *arguments)

    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {told}")
    assert models.chatty.sent == models.summer.sent == []
    assert log.rows() == before


def test_pruning_has_no_use_for_a_cache(long_talk: str, run: Run) -> None:
    result = run("compact", "-c", "--prune-tools", "--reuse-cache")

    assert result.exit_code == 2
    assert "--prune-tools writes no summary: leave out --reuse-cache" in result.stderr


def test_the_conversations_own_model_by_its_alias(long_talk: str, models: Plugin, run: Run) -> None:
    models.chatty.replies = [SUMMARY]

    assert run("compact", "-c", "--reuse-cache", "-m", "chat").exit_code == 0

    assert is_from_conversation(models.chatty.sent[0])


# The setting


def test_the_setting_is_used_where_it_can_be(long_talk: str, models: Plugin, run: Run) -> None:
    store_setting("reuse-cache", "on")
    models.chatty.replies, models.summer.replies = [SUMMARY, SUMMARY], [SUMMARY]

    other = run("compact", "-c", "-m", "summer")
    own = run("compact", "--cid", long_talk, "--again")
    off = run("compact", "--cid", long_talk, "--again", "--no-reuse-cache")

    assert [other.exit_code, own.exit_code, off.exit_code] == [0, 0, 0]
    assert [is_from_conversation(prompt) for prompt in models.summer.sent] == [False]
    assert [is_from_conversation(prompt) for prompt in models.chatty.sent] == [True, False]


@pytest.mark.parametrize("options", [[], ["--async"]])
def test_automatic_compaction_goes_by_the_setting(
    options: list[str], tool_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    store_setting("reuse-cache", "on")
    last = log.messages()
    models.chatty.replies = [SUMMARY, "At noon."]

    result = run("-c", "And in Vejle?", "-T", "lookup", "--auto-threshold", "400", *options)

    assert result.exit_code == 0, result.output
    assert "At noon." in result.stdout and "Compacted" in result.stderr
    asked, answered = models.chatty.sent
    *before, _ = asked.messages
    assert as_sent(before) == as_sent(last)[: len(before)] and len(before) > 2
    assert [tool.implementation for tool in asked.tools] == [None]
    assert declared(asked) == declared(answered)
    assert text_of(answered.messages[2]).endswith(SUMMARY)
    assert len(list(log.db["compactions"].rows)) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_automatic_compaction_in_a_program(
    is_async: bool, models: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    kind = llm.get_async_model if is_async else llm.get_model
    conversation = kind("chatty").conversation()
    models.chatty.replies = [
        *(Reply(LONG.format(place=p, n=n), usage=(None, None)) for n, p in enumerate(PLACES)),
        CALL,
        SUMMARY,
        "At noon.",
    ]

    def say(prompt: str) -> str:
        response = conversation.prompt(prompt, tools=[lookup])
        return asyncio.run(awaited(response)) if is_async else str(response.text())

    for place in PLACES:
        say(f"{place}?")
    with llm_compact.auto(threshold=540, keep="2x", reuse_cache=True):
        assert say("Vejle?") == "At noon."

    *_, last, called, summarized, answered = models.chatty.sent
    *before, _ = called.messages
    assert as_sent(before) == as_sent(last.messages)[: len(before)] and len(before) > 2
    assert [is_from_conversation(prompt) for prompt in (called, summarized)] == [True, False]
    assert declared(called) == declared(last) != []
    assert text_of(answered.messages[1]).endswith(SUMMARY)
    assert "because chatty answered with a tool call" in caplog.text


def test_a_compaction_amid_a_programs_own_policy_is_not_compacted(
    long_talk: str, models: Plugin, log: Log
) -> None:
    models.chatty.replies = [SUMMARY]

    with llm_compact.auto(threshold=100, model="summer"):
        compaction = llm_compact.compact(reuse_cache=True)

    assert compaction.summary == recorded(SUMMARY, 8)
    assert len(models.chatty.sent) == 1 and models.summer.sent == []


def test_python_is_refused_what_the_command_is(long_talk: str, models: Plugin, log: Log) -> None:
    with pytest.raises(SummarizerError, match="summer can't use what the provider of chatty"):
        llm_compact.compact(model="summer", reuse_cache=True)


# What it took


@pytest.mark.parametrize(
    "details",
    [
        {"prompt_tokens_details": {"cached_tokens": 900}},
        {"input_tokens_details": {"cached_tokens": 900}},
        {"cache_read_input_tokens": 900, "cache_creation_input_tokens": 5},
        {"prompt_cache_hit_tokens": 900},
        {"cachedContentTokenCount": 900},
    ],
)
def test_what_was_cached_is_told(
    details: dict[str, Any], long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [Reply(SUMMARY, usage=(1_000, 40), details=details)]

    result = run("compact", "-c", "--reuse-cache", "--json", "-u")

    assert json.loads(result.stdout)["cached_tokens"] == 900
    assert "with chatty (900 tokens of its input were cached). New" in result.stderr
    assert '1,000 input, 40 output, {"cached_tokens": 900}' in result.stderr
    shown = run("compact", "show", "--json")
    assert json.loads(shown.stdout)["cached_tokens"] == 900


def test_what_nobody_tells_is_unknown(long_talk: str, models: Plugin, run: Run) -> None:
    models.chatty.replies = [SUMMARY]

    result = run("compact", "-c", "--reuse-cache", "--json")

    assert json.loads(result.stdout)["cached_tokens"] is None
    assert "cached" not in result.stderr


def test_a_dry_run_tells_the_single_call_that_it_takes(
    talk: Talk, models: Plugin, run: Run
) -> None:
    talk([(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(30)])

    calls = [
        json.loads(run("compact", "-c", "--dry-run", "--json", "--window", "4k", *options).stdout)
        for options in ([], ["--reuse-cache"])
    ]

    assert [data["calls"] for data in calls] == [3, 1]


def test_a_log_without_turns_has_no_prefix(log: Log) -> None:
    assert logged_prefix(log.db, "nobody") == Prefix()


async def awaited(response: Any) -> str:
    return str(await response.text())


class Models:
    """A plugin with one model."""

    def __init__(self, model: llm.Model) -> None:
        self.model = model

    @llm.hookimpl
    def register_models(self, register: Any) -> None:
        register(self.model)


@pytest.fixture
def old() -> Iterator[Seen]:
    with registered(OldAdapters()) as adapters:
        yield adapters.seen
