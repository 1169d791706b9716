"""Automatic compaction in front of every kind of model, and with every option of `llm prompt`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import CliRunner, Result
from conftest import LONG, Log, recorded
from conversations import PICTURE
from llm.cli import cli
from llm.parts import AttachmentPart
from scripted import Plugin, Reply, Script, Scripted, lookup, registered
from test_hook import AsyncOldWithKey, Old, OldAdapters, OldWithKey, Seen, said_in_messages

from llm_compact.conversation import history_of

Run = Callable[..., Result]

SYSTEM = "You know the tides."
SUMMARY = "## Goal\nKnow the tides of six places."
PLACES = ["Esbjerg", "Nuuk", "Torshavn", "Ribe", "Skagen", "Vejle"]
AUTO = ["--auto-threshold", "400", "--compact-model", "summer"]


def long_answer(n: int) -> Reply:
    """About 90 tokens, of which the provider reports nothing."""
    return Reply(LONG.format(place=PLACES[n % 6], n=n % 10), usage=(None, None))


def talk_with(model_id: str, script: Script, log: Log, *, system: str | None = SYSTEM) -> str:
    """Six exchanges with a model, logged: about 650 tokens. The conversation's id."""
    conversation = llm.get_model(model_id).conversation()
    for n, place in enumerate(PLACES):
        script.replies = [long_answer(n)]
        response = conversation.prompt(
            f"When was high water in {place}?", system=system if n == 0 else None
        )
        response.text()
        response.log_to_db(log.db)
    script.sent.clear()
    script.keys.clear()
    return conversation.id


def compactions(log: Log) -> list[dict[str, Any]]:
    return list(log.db["compactions"].rows) if "compactions" in log.db.table_names() else []


class Lonely(Scripted):
    """A model that takes one prompt and no history, and asks others who do."""

    supports_conversation = False

    def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
        self.script.next(prompt)
        yield held_elsewhere(20)


class Consortium(Scripted):
    """A model that asks others, in threads of its own, and holds conversations with them."""

    def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
        self.script.next(prompt)
        yield held_elsewhere(20) + LONG
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(held_elsewhere, 20).result()


class Counting(Scripted):
    class Options(llm.Options):
        count_tokens: bool | None = None


def held_elsewhere(turns: int) -> str:
    """A conversation of its own that is above any threshold here. Its last answer."""
    conversation = llm.get_model("old").conversation()
    for n in range(turns):
        text: str = conversation.prompt(f"{n}: " + LONG).text()
    return text


class Adapters(OldAdapters):
    """The old ones, a second keyed one with a key of its own, and some odd ones."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.odd = Seen(), Script()

    @llm.hookimpl
    def register_models(self, register: Any) -> None:
        super().register_models(register)
        other, async_other = (
            OldWithKey("other-keyed", self.other),
            AsyncOldWithKey("other-keyed", self.other),
        )
        other.needs_key = async_other.needs_key = "other"
        register(other, async_other, aliases=("other-alias",))
        register(self.singleton)
        register(Lonely("lonely", self.odd))
        register(Consortium("consortium", self.odd))
        register(Counting("counting", self.odd))
        register(Scripted("sync-only", self.odd))

    @llm.hookimpl
    def register_tools(self, register: Any) -> None:
        register(ask_around)
        register(ask_llm)


def ask_around(turns: int) -> str:
    "Talk to somebody else for a while"
    return held_elsewhere(turns)


def ask_llm() -> str:
    "Run llm as a command"
    return CliRunner().invoke(cli, ["-m", "old", "Hi", "--auto-threshold", "90k"]).output


@pytest.fixture
def adapters(models: Plugin) -> Iterator[Adapters]:
    with registered(Adapters()) as plugin:
        yield plugin


@pytest.fixture
def seen(adapters: Adapters) -> Seen:
    return adapters.seen


def start(seen: Seen, log: Log, model_id: str = "old") -> str:
    id = talk_with(model_id, seen.script, log)
    seen.requests.clear()
    seen.chains.clear()
    seen.conversations.clear()
    return id


@pytest.mark.parametrize("options", [[], ["--async"], ["--no-stream"]])
def test_an_old_adapter_is_sent_summary_and_tail(
    options: list[str], seen: Seen, models: Plugin, log: Log, run: Run
) -> None:
    start(seen, log)
    models.summer.replies = [SUMMARY]

    result = run("-c", *options, "And today?", *AUTO)

    assert result.exit_code == 0, result.output
    chain = log.messages()
    assert seen.requests == [said_in_messages(chain[:-1])]
    assert seen.requests[0][0] == ("system", SYSTEM)
    assert seen.requests[0][2] == ("assistant", recorded(SUMMARY, messages=12))
    assert seen.requests[0][-1] == ("user", "And today?")
    assert len(compactions(log)) == 1


def test_an_old_adapter_sees_each_message_once_in_each_turn_of_a_chat(
    seen: Seen, models: Plugin, log: Log, run: Run
) -> None:
    seen.script.replies = [long_answer(n) for n in range(12)]
    asked = "".join(f"Question {n}?\n" for n in range(12))

    result = run("chat", "-m", "old", "-s", SYSTEM, *AUTO[:3], "extractive", input=f"{asked}quit\n")

    assert result.exit_code == 0, result.output
    assert seen.requests == [said_in_messages(chain) for chain in seen.chains]
    assert [request[-1] for request in seen.requests] == [
        ("user", f"Question {n}?") for n in range(12)
    ]
    for request in seen.requests:
        assert request[0] == ("system", SYSTEM)
        assert [role for role, _ in request[1:]] == (["user", "assistant"] * 12)[: len(request) - 1]
    assert len(compactions(log)) > 1


def test_the_system_prompt_stays_on_every_prompt(models: Plugin, log: Log, run: Run) -> None:
    models.chatty.replies = [long_answer(n) for n in range(8)]
    asked = "".join(f"Question {n}?\n" for n in range(8))

    run("chat", "-m", "chatty", "-s", SYSTEM, *AUTO[:3], "extractive", input=f"{asked}quit\n")

    assert [prompt.system for prompt in models.chatty.sent] == [SYSTEM] * 8
    assert len(compactions(log)) >= 1


def test_a_model_without_system_prompts_is_given_none(
    seen: Seen, models: Plugin, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(seen, log)
    monkeypatch.setattr(Old, "allows_system_prompt", False, raising=False)
    models.summer.replies = [SUMMARY]

    run("-c", "And today?", *AUTO)

    (request,) = seen.requests
    assert [role for role, _ in request][:3] == ["user", "assistant", "user"]
    assert seen.script.sent[-1].system == ""


@pytest.fixture
def keys(user_path: Path) -> None:
    user_path.mkdir(parents=True, exist_ok=True)
    (user_path / "keys.json").write_text('{"old": "k-stored", "other": "k-other"}')


@pytest.mark.parametrize("options", [[], ["--async"]])
@pytest.mark.parametrize("key, sent", [([], "k-stored"), (["--key", "k-given"], "k-given")])
def test_a_key_reaches_its_own_model_and_no_other(
    options: list[str],
    key: list[str],
    sent: str,
    keys: None,
    adapters: Adapters,
    log: Log,
    run: Run,
) -> None:
    start(adapters.seen, log, "old-keyed")
    adapters.other.script.replies = [SUMMARY]

    result = run("-c", *options, *key, "And today?", *AUTO[:3], "other-alias")

    assert result.exit_code == 0, result.output
    assert adapters.seen.script.keys == [sent]
    assert adapters.other.script.keys == ["k-other"]
    assert len(compactions(log)) == 1


@pytest.mark.parametrize("summarizer", [[], ["--compact-model", "other-alias"]])
@pytest.mark.parametrize("options", [[], ["--async"]])
def test_a_model_that_summarizes_for_itself_keeps_its_key(
    summarizer: list[str], options: list[str], adapters: Adapters, keys: None, log: Log, run: Run
) -> None:
    other = adapters.other
    talk_with("other-keyed", other.script, log)
    other.script.replies = [SUMMARY, "At six."]

    run("-c", *options, "--key", "k-given", "And today?", *AUTO[:2], *summarizer)

    assert other.script.keys == ["k-given", "k-given"]
    assert len(compactions(log)) == 1


def test_a_summarizer_without_a_key_is_not_lent_one(
    adapters: Adapters, user_path: Path, log: Log, run: Run
) -> None:
    user_path.mkdir()
    (user_path / "keys.json").write_text('{"old": "k-stored"}')
    start(adapters.seen, log, "old-keyed")

    result = run("-c", "--key", "k-given", "And today?", *AUTO[:3], "other-keyed")

    assert result.exit_code == 0
    assert result.stdout == "Answer 1.\n"
    assert "other-keyed" in result.stderr
    assert adapters.other.script.keys == []
    assert compactions(log) == []


class PooledModel(llm.AsyncModel):
    """An async model made of a sync one, which runs in a pool of threads."""

    pool = ThreadPoolExecutor(2)

    def __init__(self, model: llm.Model) -> None:
        self.model, self.model_id, self.can_stream = model, model.model_id, model.can_stream

    async def execute(self, prompt, stream, response, conversation):  # type: ignore[no-untyped-def]
        chunks = await asyncio.get_running_loop().run_in_executor(
            self.pool, lambda: list(self.model.execute(prompt, stream, response, conversation))
        )
        for chunk in chunks:
            yield chunk


class Pooling:
    """Gives all models that are only sync an async counterpart, as llm-all-models-async does."""

    def add(self, model_aliases: Any) -> None:
        for entry in model_aliases:
            if entry.model and not entry.async_model:
                entry.async_model = PooledModel(entry.model)


class PoolingBefore(Pooling):
    @llm.hookimpl
    def register_models(self, model_aliases: Any) -> None:
        self.add(model_aliases)


class PoolingAfter(Pooling):
    @llm.hookimpl(trylast=True)
    def register_models(self, model_aliases: Any) -> None:
        self.add(model_aliases)


@pytest.mark.parametrize("pooling", [PoolingBefore(), PoolingAfter()])
@pytest.mark.parametrize("model_id", ["sync-only", "old-singleton"])
def test_a_sync_model_in_a_pool_of_threads_is_compacted_once(
    pooling: Pooling, model_id: str, models: Plugin, log: Log, run: Run
) -> None:
    adapters = Adapters()
    # pluggy calls what was registered last first.
    with registered(pooling), registered(adapters):
        script = adapters.odd if model_id == "sync-only" else adapters.seen.script
        talk_with(model_id, script, log)
        models.summer.replies = [SUMMARY]
        assert hasattr(llm.get_async_model(model_id), "model")

        result = run("-c", "--async", "And today?", *AUTO)

        assert result.exit_code == 0, result.output
        assert len(models.summer.sent) == 1
        (prompt,) = script.sent
        assert said_in_messages(prompt.messages) == said_in_messages(log.messages()[:-1])
        assert prompt.system == SYSTEM
        assert len(compactions(log)) == 1
        assert result.stderr.count("Compacted") == 1


def test_a_singleton_that_is_registered_twice_is_compacted_once(
    seen: Seen, models: Plugin, log: Log, run: Run
) -> None:
    start(seen, log, "old-singleton")
    models.summer.replies = [SUMMARY]

    run("-c", "And today?", *AUTO)

    assert len(models.summer.sent) == 1
    assert len(seen.requests) == 1
    assert len(compactions(log)) == 1


def test_conversations_that_a_model_holds_are_left_alone(
    adapters: Adapters, models: Plugin, log: Log, run: Run
) -> None:
    source = talk_with("consortium", adapters.odd, log)
    threads = len(log.threads())
    models.summer.replies = [SUMMARY]
    adapters.seen.chains.clear()

    result = run("-c", "And today?", *AUTO)

    assert result.exit_code == 0, result.output
    assert [row["source_conversation_id"] for row in compactions(log)] == [source]
    assert len(log.threads()) == threads + 1
    sizes = [len(chain) for chain in adapters.seen.chains]
    assert sizes == [2 * n + 1 for n in range(20)] * 2


def test_conversations_that_a_tool_holds_are_left_alone(
    adapters: Adapters, models: Plugin, log: Log, run: Run
) -> None:
    source = talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]
    call = Reply(calls=[("c1", "ask_around", {"turns": 20})], usage=(None, None))
    models.chatty.replies = [call, "At six."]

    result = run("-c", "And today?", "-T", "ask_around", *AUTO)

    assert result.exit_code == 0, result.output
    assert [row["source_conversation_id"] for row in compactions(log)] == [source]
    assert len(log.threads()) == 2
    assert [len(chain) for chain in adapters.seen.chains] == [2 * n + 1 for n in range(20)]


def test_a_tool_that_runs_llm_does_not_switch_compaction_off(
    adapters: Adapters, models: Plugin, log: Log, run: Run
) -> None:
    calls = [("c1", "ask_llm", {})]
    models.chatty.replies = [
        Reply(LONG, calls=calls, usage=(None, None)),
        *(
            Reply(LONG, calls=[(f"c{n}", "lookup", {"key": LONG})], usage=(None, None))
            for n in "23"
        ),
        "Done.",
    ]

    result = run("-m", "chatty", "Hi", "-T", "ask_llm", "-T", "lookup", *AUTO[:3], "extractive")

    assert result.exit_code == 0, result.output
    assert len(adapters.seen.requests) == 1
    assert len({row["conversation_id"] for row in compactions(log)}) == 1
    assert history_of(models.chatty.sent[-1].messages).summary


@pytest.mark.parametrize(
    "command", [["-m", "lonely"], ["-m", "counting", "-o", "count_tokens", "1", "-T", "ask_around"]]
)
def test_where_the_commands_own_conversation_is_not_looked_after_nobody_elses_is(
    command: list[str], adapters: Adapters, models: Plugin, log: Log, run: Run
) -> None:
    if "counting" in command:
        adapters.odd.replies = [Reply(calls=[("c1", "ask_around", {"turns": 20})]), "Done."]

    result = run(*command, "Hi", *AUTO)

    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert models.summer.sent == []
    assert [len(chain) for chain in adapters.seen.chains] == [2 * n + 1 for n in range(20)]
    assert len(log.threads()) == 1


def test_counting_tokens_compacts_nothing(
    adapters: Adapters, models: Plugin, log: Log, run: Run
) -> None:
    talk_with("counting", adapters.odd, log)
    adapters.odd.replies = ["650"]

    result = run("-c", "And today?", "-o", "count_tokens", "1", *AUTO)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "650\n", "")
    assert len(adapters.odd.sent[-1].messages) == 14
    assert compactions(log) == []


def test_a_schema_goes_with_the_shorter_request(
    models: Plugin, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "supports_schema", True)
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]
    models.chatty.replies = ['{"place": "Ribe", "height": 1}']

    result = run("-c", "Where?", "--schema", "place, height int", *AUTO)

    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout) == {"place": "Ribe", "height": 1}
    (prompt,) = models.chatty.sent
    assert set(prompt.schema["properties"]) == {"place", "height"}  # type: ignore[index,call-overload]
    assert history_of(prompt.messages).summary
    assert log.newest()["forked_from"]


def test_attachments_go_with_the_shorter_request(
    models: Plugin, log: Log, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "map.png").write_bytes(PICTURE.content or b"")
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]

    result = run("-c", "What is this?", "--at", str(tmp_path / "map.png"), "image/png", *AUTO)

    assert result.exit_code == 0, result.output
    (prompt,) = models.chatty.sent
    assert [a.content_bytes() for a in prompt.attachments] == [PICTURE.content]
    last = prompt.messages[-1]
    assert sum(isinstance(part, AttachmentPart) for part in last.parts) == 1
    assert history_of(prompt.messages).summary


def test_a_template_goes_with_the_shorter_request(
    models: Plugin, log: Log, run: Run, user_path: Path
) -> None:
    talk_with("chatty", models.chatty, log, system=None)
    (user_path / "templates").mkdir(parents=True)
    (user_path / "templates" / "short.yaml").write_text("system: Be short\nprompt: 'Asked: $input'")
    models.summer.replies = [SUMMARY]

    result = run("-c", "-t", "short", "And today?", *AUTO)

    assert result.exit_code == 0, result.output
    (prompt,) = models.chatty.sent
    assert prompt.system == "Be short"
    assert said_in_messages(prompt.messages)[-1] == ("user", "Asked: And today?")
    assert history_of(prompt.messages).summary


def test_fragments_go_with_the_shorter_request_and_are_stored_once(
    models: Plugin, log: Log, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tides.txt").write_text("A table of tides.")
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]

    result = run("-c", "And today?", "-f", str(tmp_path / "tides.txt"), *AUTO)

    assert result.exit_code == 0, result.output
    (prompt,) = models.chatty.sent
    assert said_in_messages(prompt.messages)[-1] == ("user", "A table of tides.\nAnd today?")
    assert [row["content"] for row in log.db["fragments"].rows] == ["A table of tides."]


@pytest.mark.parametrize("options", [[], ["-x"], ["--xl"], ["-u"], ["--no-stream"], ["--async"]])
def test_the_output_is_what_it_would_be_without(
    options: list[str], models: Plugin, log: Log, run: Run
) -> None:
    id = talk_with("chatty", models.chatty, log)
    answer = "Here:\n```python\nprint(6)\n```\nor\n```\nsix\n```"
    models.summer.replies = [SUMMARY]

    models.chatty.replies = [answer]
    compacted = run("--cid", id, *options, "And today?", *AUTO)
    models.chatty.replies = [answer]
    plain = run("--cid", id, *options, "And today?")

    assert compacted.stdout == plain.stdout
    assert compacted.exit_code == plain.exit_code == 0
    told = [line for line in compacted.stderr.splitlines() if not line.startswith("Compacted")]
    assert told == plain.stderr.splitlines()
    assert len(compactions(log)) == 1


def test_json_is_of_the_response_in_the_new_conversation(
    models: Plugin, log: Log, run: Run
) -> None:
    talk_with("chatty", models.chatty, log)
    models.summer.replies = [SUMMARY]
    models.chatty.replies = ["At six."]

    result = run("-c", "--json", "And today?", *AUTO)

    printed = json.loads(result.stdout)
    assert log.newest()["id"] in result.stdout
    assert "At six." in json.dumps(printed)


def test_a_tool_loop_of_an_async_old_adapter_goes_on_from_the_shorter_chain(
    seen: Seen, models: Plugin, log: Log, run: Run
) -> None:
    start(seen, log)
    models.summer.replies = [SUMMARY]
    seen.script.replies = [Reply(calls=[("c1", "lookup", {"key": "a"})], usage=(None, None)), "Six"]

    result = run("-c", "--async", "-T", "lookup", "And today?", *AUTO)

    assert result.exit_code == 0, result.output
    assert seen.requests == [said_in_messages(chain) for chain in seen.chains]
    assert seen.requests[1][:-2] == seen.requests[0]
    assert seen.requests[1][-1] == ("result", ("lookup", lookup("a"), "c1"))
