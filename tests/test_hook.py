"""What models are handed: adapters that read `conversation.responses` see a compacted chain."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log
from conversations import PICTURE, broken_conversations, conversations
from hypothesis import given
from llm.parts import (
    AttachmentPart,
    Message,
    StreamEvent,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from scripted import Reply, Script, lookup, registered

from llm_compact import conversation as conversation_module
from llm_compact import hook
from llm_compact.conversation import Marker, compacted_chain, history_of
from llm_compact.turns import stand_in, turns_of

Run = Callable[..., Result]
Said = tuple[str, Any]

MARK = Marker(generation=1, compaction="01abc", head=8)


def said_in_responses(prompt: Any, conversation: Any) -> list[Said]:
    """A request as adapters older than llm 0.32 build it: from the responses, then the prompt.

    They find the system prompt in both, and send it when it differs from the one that they sent.
    """
    said: list[Said] = []
    for response in conversation.responses if conversation else []:
        said += new_in(said, said_in_prompt(response.prompt, response.attachments))
        if text := response.text_or_raise():
            said.append(("assistant", text))
        said += [
            ("call", (call.name, call.arguments, call.tool_call_id))
            for call in response.tool_calls_or_raise()
        ]
    return said + new_in(said, said_in_prompt(prompt, prompt.attachments))


def new_in(said: Sequence[Said], more: Sequence[Said]) -> list[Said]:
    return [each for each in more if each[0] != "system" or each not in said]


def said_in_prompt(prompt: Any, attachments: Sequence[llm.Attachment]) -> list[Said]:
    said: list[Said] = [("system", prompt.system)] if prompt.system else []
    said += [("result", (r.name, r.output, r.tool_call_id)) for r in prompt.tool_results]
    if prompt.prompt:
        said.append(("user", prompt.prompt))
    return said + [("picture", attachment.content) for attachment in attachments]


def said_in_messages(messages: Sequence[Message]) -> list[Said]:
    """The same request as newer adapters build it."""
    said: list[Said] = []
    for message in messages:
        if text := "".join(p.text for p in message.parts if isinstance(p, TextPart)):
            said.append((message.role, text))
        for part in message.parts:
            if isinstance(part, ToolCallPart) and not part.server_executed:
                said.append(("call", (part.name, part.arguments, part.tool_call_id)))
            elif isinstance(part, ToolResultPart) and not part.server_executed:
                said.append(("result", (part.name, part.output, part.tool_call_id)))
            elif isinstance(part, AttachmentPart):
                said.append(("picture", part.attachment.content))
    return said


@dataclass
class Seen:
    """What the old adapters were called with."""

    script: Script = field(default_factory=Script)
    requests: list[list[Said]] = field(default_factory=list)
    conversations: list[Any] = field(default_factory=list)
    chains: list[list[Message]] = field(default_factory=list)

    def reply(self, prompt: Any, conversation: Any, key: str | None = None) -> Reply:
        self.requests.append(said_in_responses(prompt, conversation))
        self.conversations.append(conversation)
        self.chains.append(prompt.messages)
        return self.script.next(prompt, key)


class _Old:
    can_stream = True
    supports_tools = True
    attachment_types = frozenset({"image/png"})

    def __init__(self, model_id: str, seen: Seen) -> None:
        self.model_id, self.seen = model_id, seen


class Old(_Old, llm.Model):
    def execute(self, prompt, stream, response, conversation):  # type: ignore[no-untyped-def]
        reply = self.seen.reply(prompt, conversation)
        yield from reply.events()
        reply.finish(response)


class OldWithKey(_Old, llm.KeyModel):
    needs_key = "old"

    def execute(self, prompt, stream, response, conversation, key):  # type: ignore[no-untyped-def]
        reply = self.seen.reply(prompt, conversation, key)
        yield from reply.events()
        reply.finish(response)


class AsyncOld(_Old, llm.AsyncModel):
    async def execute(  # type: ignore[no-untyped-def]
        self, prompt, stream, response, conversation
    ) -> AsyncIterator[StreamEvent]:
        reply = self.seen.reply(prompt, conversation)
        for past in conversation.responses if conversation else []:
            assert await past.text() == past.text_or_raise()
            assert await past.tool_calls() == past.tool_calls_or_raise()
        for event in reply.events():
            yield event
        reply.finish(response)


class AsyncOldWithKey(_Old, llm.AsyncKeyModel):
    needs_key = "old"

    async def execute(  # type: ignore[no-untyped-def]
        self, prompt, stream, response, conversation, key
    ) -> AsyncIterator[StreamEvent]:
        reply = self.seen.reply(prompt, conversation, key)
        for event in reply.events():
            yield event
        reply.finish(response)


class Delegating(llm.Model):
    """A model that lets another one answer, as consortium does."""

    model_id = "delegating"

    def execute(self, prompt, stream, response, conversation):  # type: ignore[no-untyped-def]
        yield llm.get_model("old").prompt(f"Asked for you: {prompt.prompt}").text()


class ThreadedOld(llm.AsyncModel):
    """An async model that runs a sync one and hands everything on by position."""

    def __init__(self, model: Old) -> None:
        self.model_id, self.model = "threaded", model

    async def execute(  # type: ignore[no-untyped-def]
        self, prompt, stream, response, conversation
    ) -> AsyncIterator[str]:
        for event in self.model.execute(prompt, stream, response, conversation):
            yield event


class OldAdapters:
    __name__ = "old_adapters"

    def __init__(self) -> None:
        self.seen = Seen()
        self.singleton = Old("old-singleton", self.seen)

    @llm.hookimpl
    def register_models(self, register: Any) -> None:
        register(Old("old", self.seen), AsyncOld("old", self.seen))
        register(OldWithKey("old-keyed", self.seen), AsyncOldWithKey("old-keyed", self.seen))
        register(self.singleton)
        register(Delegating())
        threaded = Old("threaded", self.seen)
        register(threaded, ThreadedOld(threaded))


@pytest.fixture
def adapters() -> Iterator[OldAdapters]:
    with registered(OldAdapters()) as plugin:
        yield plugin


@pytest.fixture
def seen(adapters: OldAdapters) -> Seen:
    return adapters.seen


@pytest.fixture
def keys(user_path: Any) -> None:
    user_path.mkdir(parents=True)
    (user_path / "keys.json").write_text('{"old": "k-123"}')


def old_talk(seen: Seen, log: Log, model_id: str = "old", *, with_tools: bool = False) -> None:
    """Six exchanges with an old adapter, logged; with tools, each exchange has a round."""
    conversation = llm.get_model(model_id).conversation()
    for n, place in enumerate(["Esbjerg", "Nuuk", "Torshavn", "Ribe", "Skagen", "Vejle"]):
        answer = LONG.format(place=place, n=n)
        call = Reply(calls=[(f"call-{n}", "lookup", {"key": place})])
        seen.script.replies = [call, answer] if with_tools else [answer]
        response = conversation.chain(
            f"When was high water in {place}?",
            system="You know the tides." if n == 0 else None,
            tools=[lookup] if with_tools else [],
        )
        response.text()
        response.log_to_db(log.db)
    seen.requests.clear()
    seen.conversations.clear()
    seen.chains.clear()


@pytest.fixture
def compacted(seen: Seen, log: Log, run: Run) -> list[Said]:
    """A compacted conversation with `old`, as it has to be sent."""
    old_talk(seen, log)
    assert run("compact", "-c", "-m", "extractive").exit_code == 0
    return said_in_messages(log.messages())


def test_llm_continues_with_summary_and_tail(
    compacted: list[Said], seen: Seen, log: Log, run: Run
) -> None:
    result = run("-c", "And today?")

    assert result.exit_code == 0, result.output
    (request,) = seen.requests
    assert request == [*compacted, ("user", "And today?")]
    roles = [role for role, _ in request]
    assert roles == ["system", *["user", "assistant"] * 3, "user"]
    summary = history_of(log.messages()).summary
    assert summary and request[2] == ("assistant", summary.text)


def test_llm_continues_again_from_the_log(
    compacted: list[Said], seen: Seen, log: Log, run: Run
) -> None:
    seen.script.replies = ["At six.", "At seven."]

    run("-c", "And today?")
    run("-c", "And tomorrow?")

    later = [("user", "And today?"), ("assistant", "At six."), ("user", "And tomorrow?")]
    assert seen.requests[-1] == [*compacted, *later]
    assert len(log.threads()) == 2


def test_every_turn_of_a_chat_sees_each_message_once(
    compacted: list[Said], seen: Seen, run: Run
) -> None:
    seen.script.replies = ["One.", "Two.", "Three."]

    run("chat", "-c", input="First?\nSecond?\nThird?\nquit\n")

    first = [*compacted, ("user", "First?")]
    second = [*first, ("assistant", "One."), ("user", "Second?")]
    third = [*second, ("assistant", "Two."), ("user", "Third?")]
    assert seen.requests == [first, second, third]


def test_llm_continues_asynchronously(compacted: list[Said], seen: Seen, run: Run) -> None:
    result = run("-c", "--async", "And today?")

    assert result.exit_code == 0, result.output
    assert seen.requests == [[*compacted, ("user", "And today?")]]
    (shown,) = seen.conversations
    assert isinstance(shown, llm.AsyncConversation)
    assert all(isinstance(response, llm.AsyncResponse) for response in shown.responses)


@pytest.mark.parametrize("options", [[], ["--async"]])
def test_models_with_a_key_get_their_key(
    options: list[str], keys: None, seen: Seen, log: Log, run: Run
) -> None:
    old_talk(seen, log, "old-keyed")
    run("compact", "-c", "-m", "extractive")
    compacted = said_in_messages(log.messages())

    run("-c", *options, "And today?")
    run("-c", *options, "--key", "k-other", "And tomorrow?")

    assert seen.requests[0] == [*compacted, ("user", "And today?")]
    assert seen.script.keys[-2:] == ["k-123", "k-other"]


def test_the_response_is_logged_in_the_real_conversation(
    compacted: list[Said], seen: Seen, log: Log
) -> None:
    conversation = llm.cli.load_conversation(None)  # type: ignore[attr-defined]

    response = conversation.prompt("And today?")
    response.text()

    (shown,) = seen.conversations
    assert response.conversation is conversation
    assert conversation.responses == [response]
    assert shown is not conversation
    assert (shown.id, shown.name, shown.model) == (
        conversation.id,
        conversation.name,
        conversation.model,
    )


def test_a_second_compaction_is_shown_like_the_first(
    compacted: list[Said], seen: Seen, log: Log, run: Run
) -> None:
    for n in range(4):
        seen.script.replies = [LONG.format(place="Skagen", n=n)]
        run("-c", f"Question {n}?")
    assert run("compact", "-c", "-m", "extractive").exit_code == 0
    again = said_in_messages(log.messages())

    run("-c", "And today?")

    assert seen.requests[-1] == [*again, ("user", "And today?")]
    assert again[2] != compacted[2]


def test_tool_calls_and_results_are_shown_with_each_other(seen: Seen, log: Log, run: Run) -> None:
    old_talk(seen, log, with_tools=True)
    run("compact", "-c", "-m", "extractive")
    compacted = said_in_messages(log.messages())

    run("-c", "And today?")

    (request,) = seen.requests
    assert request == [*compacted, ("user", "And today?")]
    assert [role for role, _ in request][3:7] == ["user", "call", "result", "assistant"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_loop_goes_on_in_a_compacted_conversation(
    is_async: bool, compacted: list[Said], seen: Seen, log: Log
) -> None:
    conversation = llm.cli.load_conversation(None, async_=is_async)  # type: ignore[attr-defined]
    calls = [("c1", "lookup", {"key": "a"}), ("c2", "lookup", {"key": "b"})]
    seen.script.replies = [Reply(calls=calls[:1]), Reply("Hm.", calls=calls[1:]), "Done."]

    chain = conversation.chain("Look them up", tools=[lookup])
    text = asyncio.run(chain.text()) if is_async else chain.text()

    assert text == "Hm. Done."
    first = [*compacted, ("user", "Look them up")]
    second = [*first, call("c1", "a"), result("c1", "a")]
    third = [*second, ("assistant", "Hm."), call("c2", "b"), result("c2", "b")]
    assert seen.requests == [first, second, third]


def call(id: str, key: str) -> Said:
    return ("call", ("lookup", {"key": key}, id))


def result(id: str, key: str) -> Said:
    return ("result", ("lookup", f"value of {key}", id))


def test_a_model_without_system_prompts_is_given_none(
    compacted: list[Said], adapters: OldAdapters, seen: Seen, run: Run, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Old, "allows_system_prompt", False, raising=False)

    run("-c", "And today?")

    assert seen.requests == [[*compacted[1:], ("user", "And today?")]]


def test_without_a_compaction_the_adapter_gets_what_llm_passed(
    seen: Seen, log: Log, run: Run
) -> None:
    old_talk(seen, log)
    conversation = llm.cli.load_conversation(None)  # type: ignore[attr-defined]

    conversation.prompt("And today?").text()
    llm.get_model("old").prompt("Alone").text()
    run("compact", "-c", "-m", "extractive")
    llm.get_model("old").prompt("Alone again").text()

    assert seen.conversations[0] is conversation
    assert seen.conversations[1:] == [None, None]


def test_the_arguments_arrive_as_they_were_passed(adapters: OldAdapters) -> None:
    class Recording(Old):
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            return args, kwargs, answer

    answer = iter(["Hello"])
    model = Recording("recording", adapters.seen)
    hook.wrap_execute(model)
    prompt, response, conversation = llm.Prompt("Hi", model), object(), object()

    by_name = model.execute(prompt, stream=True, response=response, conversation=conversation)
    by_position = model.execute(prompt, False, response, conversation, key="k")

    names = {"stream": True, "response": response, "conversation": conversation}
    assert by_name == ((prompt,), names, answer)
    assert by_position == ((prompt, False, response, conversation), {"key": "k"}, answer)


def test_adapters_built_from_messages_get_the_same_messages(
    compacted: list[Said], seen: Seen, log: Log, run: Run
) -> None:
    stored = log.messages()

    run("-c", "And today?")

    assert seen.chains == [[*stored, llm.user("And today?")]]


@pytest.mark.parametrize("name", ["get_model", "get_async_model"])
def test_a_model_is_wrapped_once(name: str, adapters: OldAdapters) -> None:
    for _ in range(3):
        model = getattr(llm, name)("old")

    assert is_wrapped(model.execute)
    assert not is_wrapped(model.execute.__wrapped__)


def test_a_singleton_is_wrapped_once(adapters: OldAdapters) -> None:
    for _ in range(3):
        assert llm.get_model("old-singleton") is adapters.singleton

    assert is_wrapped(adapters.singleton.execute)
    assert not is_wrapped(adapters.singleton.execute.__wrapped__)  # type: ignore[attr-defined]
    assert vars(adapters.singleton).keys() == {"model_id", "seen", "execute"}


def is_wrapped(execute: Any) -> bool:
    return execute.__module__ == __name__ and hasattr(execute, "__wrapped__")


def test_a_model_that_can_not_be_wrapped_still_answers(seen: Seen) -> None:
    class Rigid(Old):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "execute":
                raise AttributeError(name)
            super().__setattr__(name, value)

    model = Rigid("rigid", seen)
    hook.wrap_execute(model)

    assert model.prompt("Hi").text() == "Answer 1."


def test_a_model_that_asks_another_model_passes_nothing_on(seen: Seen, log: Log, run: Run) -> None:
    old_talk(seen, log, "delegating")
    run("compact", "-c", "-m", "extractive")
    seen.requests.clear()

    run("-c", "And today?")

    assert seen.requests == [[("user", "Asked for you: And today?")]]


def test_a_sync_model_behind_an_async_one_sees_finished_sync_responses(
    seen: Seen, log: Log, run: Run
) -> None:
    old_talk(seen, log, "threaded")
    run("compact", "-c", "-m", "extractive")
    compacted = said_in_messages(log.messages())

    run("-c", "--async", "And today?")

    assert seen.requests == [[*compacted, ("user", "And today?")]]
    (shown,) = seen.conversations
    assert {type(response) for response in shown.responses} == {llm.Response}


def test_tool_results_and_text_given_together_are_the_prompts_own(
    compacted: list[Said], seen: Seen
) -> None:
    conversation = llm.cli.load_conversation(None)  # type: ignore[attr-defined]
    seen.script.replies = [Reply(calls=[("c1", "lookup", {"key": "a"})]), "Done."]
    results = [llm.ToolResult(name="lookup", output="value of a", tool_call_id="c1")]

    conversation.prompt("Look it up", tools=[lookup]).text()
    conversation.prompt("And hurry", tool_results=results).text()

    end = [("user", "Look it up"), call("c1", "a"), result("c1", "a"), ("user", "And hurry")]
    assert seen.requests[-1] == [*compacted, *end]


def test_a_prompt_without_a_conversation_is_shown_its_chain(
    compacted: list[Said], seen: Seen, log: Log
) -> None:
    llm.get_model("old").prompt("And today?", messages=log.messages()).text()

    assert seen.requests == [[*compacted, ("user", "And today?")]]


def test_a_past_prompt_knows_all_messages_up_to_its_turn(
    compacted: list[Said], seen: Seen, log: Log, run: Run
) -> None:
    run("-c", "And today?")

    chain = log.messages()
    (shown,) = seen.conversations
    assert [r.prompt.messages for r in shown.responses] == [chain[:2], chain[:4], chain[:6]]
    assert [r.messages() for r in shown.responses] == [[chain[2]], [chain[4]], [chain[6]]]


@given(conversations(), conversations(open_end=False))
def test_an_old_adapter_is_always_shown_what_a_new_one_is(
    tail: list[Message], later: list[Message]
) -> None:
    model = Old("old", Seen())
    body = [m for m in [*tail, *later] if m.role != "system"]
    system = [llm.system("You know the tides.")]
    chain = compacted_chain(system, "Sum up", "The summary", body, MARK)
    picture = llm.Attachment(type=PICTURE.type, content=PICTURE.content)
    conversation = llm.Conversation(model)

    response = conversation.prompt("Now?", attachments=[picture], messages=chain)

    shown = stand_in(model, response.prompt, conversation)
    request = said_in_responses(response.prompt, shown)
    assert request == said_in_messages(response.prompt.messages)


@given(broken_conversations())
def test_turns_hold_each_message_once_in_order(chain: list[Message]) -> None:
    turns = turns_of(chain)

    assert [m for turn in turns for m in (*turn.input, *turn.output)] == chain


def test_the_marker_of_the_hook_is_that_of_the_conversation() -> None:
    assert hook.MARKER == conversation_module.MARKER


@pytest.mark.parametrize("system", [[], [llm.system("Be brief")]])
def test_only_a_compacted_chain_is_taken_for_one(system: list[Message]) -> None:
    chain = compacted_chain(system, "Sum up", "llm_compact", [llm.user("Hi")], MARK)

    assert hook.is_compacted(chain)
    assert hook.is_compacted([llm.system("Another one"), *chain[len(system) :]])
    assert not hook.is_compacted([*system, llm.user("llm_compact"), llm.assistant("Hi")])
    assert not hook.is_compacted(system)
    assert not hook.is_compacted([Message(role="user", parts=[])])


def test_a_prompt_in_an_uncompacted_conversation_imports_nothing_of_the_pipeline() -> None:
    code = """
import sys, llm, llm_compact
class Echo(llm.Model):
    model_id = "echo"
    def execute(self, prompt, stream, response, conversation):
        yield prompt.prompt
class Plugin:
    @llm.hookimpl
    def register_models(self, register):
        register(Echo())
from llm.plugins import pm
pm.register(Plugin())
conversation = llm.get_model("echo").conversation()
for text in ("One", "Two"):
    assert conversation.prompt(text).text() == text
print(*sorted(m for m in sys.modules if m.startswith("llm_compact")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) <= {"llm_compact", "llm_compact.cli", "llm_compact.hook"}
