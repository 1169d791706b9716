"""Models that say what they are told to say, and remember what they were sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import llm
from llm.parts import StreamEvent
from llm.plugins import pm

T = TypeVar("T")


@contextmanager
def registered(plugin: T) -> Iterator[T]:
    """A plugin of llm, for as long as the block."""
    pm.register(plugin)
    try:
        yield plugin
    finally:
        pm.unregister(plugin)


@dataclass
class Reply:
    """One answer of a scripted model."""

    text: str = ""
    calls: Sequence[tuple[str, str, dict[str, Any]]] = ()
    "(id, tool name, arguments) of each tool call."
    reasoning: str = ""
    server_calls: Sequence[tuple[str, str, str]] = ()
    "(id, tool name, output) of each call that the provider executes itself."
    raises: BaseException | None = None
    usage: tuple[int | None, int | None] = (120, 30)
    json: dict[str, Any] | None = None
    details: dict[str, Any] | None = None
    "What the provider tells of its usage besides `usage`."

    def events(self) -> Iterator[StreamEvent]:
        if self.reasoning:
            yield StreamEvent(type="reasoning", chunk=self.reasoning)
        for id, name, output in self.server_calls:
            common = {"tool_call_id": id, "tool_name": name, "server_executed": True}
            yield StreamEvent(type="tool_call_name", chunk=name, **common)
            yield StreamEvent(type="tool_call_args", chunk="{}", **common)
            yield StreamEvent(type="tool_result", chunk=output, **common)
        # Two pieces, so that a test of streaming sees more than one.
        middle = len(self.text) // 2
        for piece in (self.text[:middle], self.text[middle:]):
            if piece:
                yield StreamEvent(type="text", chunk=piece)
        for id, name, arguments in self.calls:
            yield StreamEvent(type="tool_call_name", chunk=name, tool_call_id=id, tool_name=name)
            yield StreamEvent(
                type="tool_call_args",
                chunk=json.dumps(arguments),
                tool_call_id=id,
                tool_name=name,
            )

    def finish(self, response: Any) -> None:
        for id, name, arguments in self.calls:
            response.add_tool_call(llm.ToolCall(name=name, arguments=arguments, tool_call_id=id))
        response.set_usage(input=self.usage[0], output=self.usage[1], details=self.details)
        response.response_json = self.json
        if self.raises:
            raise self.raises


@dataclass
class Script:
    """What a model will answer, and the prompts that it was sent."""

    replies: list[Reply | str] = field(default_factory=list)
    sent: list[llm.Prompt] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def next(self, prompt: llm.Prompt, key: str | None = None) -> Reply:
        self.sent.append(prompt)
        self.keys.append(key)
        reply = self.replies.pop(0) if self.replies else f"Answer {len(self.sent)}."
        return Reply(reply) if isinstance(reply, str) else reply

    def texts_sent(self) -> str:
        """The last prompt as text, system prompt included."""
        prompt = self.sent[-1]
        return f"{prompt.system}\n{prompt.prompt}"


class _Common:
    can_stream = True
    supports_tools = True
    attachment_types = frozenset({"image/png"})


class Scripted(_Common, llm.Model):
    def __init__(self, model_id: str, script: Script) -> None:
        self.model_id, self.script = model_id, script

    class Options(llm.Options):
        max_tokens: int | None = None

    def execute(self, prompt, stream, response, conversation=None):  # type: ignore[no-untyped-def]
        reply = self.script.next(prompt)
        yield from reply.events()
        reply.finish(response)


class ScriptedWithKey(_Common, llm.KeyModel):
    needs_key = "scripted"

    def __init__(self, model_id: str, script: Script) -> None:
        self.model_id, self.script = model_id, script

    def execute(self, prompt, stream, response, conversation=None, key=None):  # type: ignore[no-untyped-def]
        reply = self.script.next(prompt, key)
        yield from reply.events()
        reply.finish(response)


class AsyncScripted(_Common, llm.AsyncModel):
    def __init__(self, model_id: str, script: Script) -> None:
        self.model_id, self.script = model_id, script

    async def execute(  # type: ignore[no-untyped-def]
        self, prompt, stream, response, conversation=None
    ) -> AsyncIterator[StreamEvent]:
        reply = self.script.next(prompt)
        for event in reply.events():
            yield event
        reply.finish(response)


class ScriptedWithSchema(Scripted):
    supports_schema = True


class ScriptedElsewhere(Scripted):
    """A model of the same plugin that somebody else runs."""

    api_base = "https://elsewhere.example/v1"


class Toolkit(llm.Toolbox):
    """A toolbox with a configuration, which has to come back when the conversation goes on."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def whereami(self) -> str:
        "The configured root"
        return self.root


def lookup(key: str) -> str:
    "Look a key up"
    return f"value of {key}"


class Plugin:
    """The plugin that registers them: `chatty` holds conversations, `summer` summarizes."""

    __name__ = "scripted_models"

    def __init__(self) -> None:
        self.chatty = Script()
        self.summer = Script()
        self.hide_chatty = False

    @llm.hookimpl
    def register_models(self, register: Any) -> None:
        if not self.hide_chatty:
            register(
                Scripted("chatty", self.chatty),
                AsyncScripted("chatty", self.chatty),
                aliases=("chat",),
            )
        register(Scripted("summer", self.summer), aliases=("sum",))
        register(ScriptedWithKey("keyed", self.summer))
        register(AsyncScripted("async-only", self.summer))
        register(ScriptedWithSchema("schematic", self.summer))
        register(ScriptedElsewhere("elsewhere", self.summer))

    @llm.hookimpl
    def register_tools(self, register: Any) -> None:
        register(lookup)
        register(Toolkit)
