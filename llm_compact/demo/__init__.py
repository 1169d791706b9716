"""A demonstration: a long sample conversation in a temporary log, compacted by real llm commands.

Needs no key and no network: the model that goes on with the conversation only tells what it was
sent. `llm compact demo` runs it.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import click
import llm
import sqlite_utils
import yaml
from llm.cli import cli
from llm.parts import Message, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from llm.plugins import pm

MODEL = "tells-what-it-was-sent"


def main() -> None:
    """Write the sample into a log of its own, compact it offline, and look at what came of it."""
    sample, model = load_sample(), DemoModel()
    with _own_llm(model) as database:
        source_id = log_sample(sample, model, database)
        exchanges = sum("user" in message for message in sample["messages"])
        click.echo(f"A temporary log holds the sample {sample['name']!r}: {exchanges} exchanges.")
        _llm("compact", "-c", "-m", "extractive")
        _llm("logs", "-c", "--short")
        _llm("-c", "What is still open?")
        _llm("--cid", source_id, "And before the compaction?")


@contextmanager
def _own_llm(model: DemoModel) -> Iterator[str]:
    """An llm with a user directory of its own and the sample's model. Yields the log's path."""
    plugin = DemoPlugin(model)
    user_path, stdin = os.environ.get("LLM_USER_PATH"), sys.stdin
    with tempfile.TemporaryDirectory() as directory:
        os.environ["LLM_USER_PATH"] = directory
        # llm reads the rest of a prompt from a standard input that is no terminal.
        sys.stdin = io.StringIO("")
        pm.register(plugin)
        try:
            yield os.path.join(directory, "logs.db")
        finally:
            pm.unregister(plugin)
            sys.stdin = stdin
            os.environ.pop("LLM_USER_PATH")
            if user_path is not None:
                os.environ["LLM_USER_PATH"] = user_path


def load_sample() -> dict[str, Any]:
    """The sample conversation, as conversation.yaml has it."""
    text = files("llm_compact").joinpath("demo/conversation.yaml").read_text("utf-8")
    sample: dict[str, Any] = yaml.safe_load(text)
    return sample


def log_sample(sample: dict[str, Any], model: DemoModel, path: str) -> str:
    """Log the sample turn by turn, as llm would have. Returns the conversation's id."""
    conversation = model.conversation()
    names: dict[str, str] = {}
    text, results = "", []
    with sqlite_utils.Database(path) as db:
        for number, message in enumerate(sample["messages"]):
            if "user" in message:
                text = message["user"].strip()
            elif "results" in message:
                results = [
                    llm.ToolResult(
                        name=names[result["id"]],
                        output=result["output"].rstrip(),
                        tool_call_id=result["id"],
                    )
                    for result in message["results"]
                ]
            else:
                names |= {call["id"]: call["name"] for call in message.get("calls", [])}
                model.script = message
                response = conversation.prompt(
                    text,
                    tool_results=results,
                    system=sample["system"] if number == 1 else None,
                )
                response.text()
                response.log_to_db(db)  # type: ignore[no-untyped-call]
                text, results = "", []
    model.script = None
    return conversation.id


class DemoModel(llm.Model):
    """Plays the assistant of the sample; after that, it tells what it was sent."""

    model_id = MODEL
    can_stream = True
    supports_tools = True

    def __init__(self) -> None:
        self.script: dict[str, Any] | None = None

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str | StreamEvent]:
        if self.script is None:
            yield from _told(prompt.messages)
            return
        if self.script.get("assistant"):
            yield self.script["assistant"].strip()
        for call in self.script.get("calls", []):
            response.add_tool_call(
                llm.ToolCall(
                    name=call["name"], arguments=call["arguments"], tool_call_id=call["id"]
                )
            )


class DemoPlugin:
    """Registers the model of the sample."""

    __name__ = "llm-compact-demo"

    def __init__(self, model: DemoModel) -> None:
        self.model = model

    @llm.hookimpl
    def register_models(self, register: Any) -> None:
        register(self.model)


def _told(messages: list[Message]) -> Iterator[str]:
    characters = sum(len(_words(message)) for message in messages)
    yield f"I was sent {len(messages)} messages, {characters:,} characters:\n"
    shown = messages if len(messages) <= 12 else [*messages[:3], *messages[-5:]]
    for number, message in enumerate(shown):
        if number == 3 and len(shown) < len(messages):
            yield f"  ... {len(messages) - len(shown)} more ...\n"
        words = " ".join(_words(message).split())
        yield f"  {message.role:<10}{words[:80]}{'…' if len(words) > 80 else ''}\n"


def _words(message: Message) -> str:
    said = []
    for part in message.parts:
        if isinstance(part, TextPart):
            said.append(part.text)
        elif isinstance(part, ToolCallPart):
            said.append(f"[calls {part.name}: {part.arguments}]")
        elif isinstance(part, ToolResultPart):
            said.append(part.output)
    return "\n".join(said)


def _llm(*args: str) -> None:
    """Run an llm command in this process, where the sample's model is registered."""
    click.secho(f"\n$ llm {shlex.join(args)}", bold=True)
    sys.stdout.flush()
    cli.main(args=list(args), standalone_mode=False)
    sys.stdout.flush()
