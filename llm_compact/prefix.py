"""What goes in front of a conversation's messages, and what decides how they are sent: the tools
and options of its model. A provider finds in its cache only what begins exactly as it did before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import llm
import sqlite_utils

from .tokens import count_text

LIMIT_OPTIONS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "num_predict")
LEAST_LIMIT = 8_000
"Tokens. A limit below this is meant for a chat's answers and would cut a summary off."
_FORM_OPTIONS = ("json_object", "prefill", "hide_prefill", "stop", "stop_sequences")
"Options that make something else of an answer than a text, or end it early."


@dataclass(frozen=True)
class Prefix:
    """How the model of a conversation was called, as far as a provider's cache depends on it."""

    tools: tuple[llm.Tool, ...] = ()
    "As they were declared, in order, and without anything that could run."
    options: Mapping[str, Any] = field(default_factory=dict)
    run_by_provider: tuple[str, ...] = ()
    "Names of tools that the provider runs by itself: to declare them is to allow that."

    @property
    def tokens(self) -> int:
        """The plain count of the tools."""
        return tools_tokens(self.tools)


def tools_tokens(tools: Iterable[llm.Tool | llm.ServerSideTool]) -> int:
    """The plain count of what a provider is told of tools."""
    schemas = (
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        for tool in tools
        if isinstance(tool, llm.Tool)
    )
    return sum(count_text(json.dumps(schema, default=str)) for schema in schemas)


def live_prefix(prompt: llm.Prompt) -> Prefix:
    """That of a prompt that is about to be sent."""
    tools = [tool for tool in prompt.tools if isinstance(tool, llm.Tool)]
    others = [tool.name for tool in prompt.tools if not isinstance(tool, llm.Tool)]
    return Prefix(
        tuple(replace(tool, implementation=None) for tool in tools),
        _kept(dict(prompt.options)),
        tuple(others),
    )


def logged_prefix(db: sqlite_utils.Database, conversation_id: str) -> Prefix:
    """That of the newest turn of a conversation in the log."""
    for turns, tools, turn, conversation in (
        ("turns", "turn_tools", "turn_id", "thread_id"),
        # Of an llm older than 0.32.
        ("responses", "tool_responses", "response_id", "conversation_id"),
    ):
        if not (db.table(turns).exists() and db.table(tools).exists()):
            continue
        newest = db.query(
            f"select id, options_json from {turns} where {conversation} = ? "
            "order by id desc limit 1",
            [conversation_id],
        )
        for row in newest:
            declared = list(
                db.query(
                    f"select tools.*, given.* from {tools} as given "
                    f"join tools on tools.id = tool_id where {turn} = ? order by given.rowid",
                    [row["id"]],
                )
            )
            return Prefix(
                tuple(_tool(told) for told in declared if not _is_run_by_provider(told)),
                _kept(_json_object(row["options_json"])),
                tuple(told["name"] for told in declared if _is_run_by_provider(told)),
            )
    return Prefix()


def _tool(row: Mapping[str, Any]) -> llm.Tool:
    schema = _json_object(row["input_schema"])
    return llm.Tool(row["name"], row["description"], schema, plugin=row["plugin"])


def _is_run_by_provider(row: Mapping[str, Any]) -> bool:
    # llm logs such a tool as an instance that has no schema. A toolbox's method always has one.
    return row.get("instance_id") is not None and not _json_object(row["input_schema"])


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which a summary can be written."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and name not in _FORM_OPTIONS and not _is_short_limit(name, value)
    }


def _is_short_limit(name: str, value: Any) -> bool:
    return name in LIMIT_OPTIONS and isinstance(value, int) and value < LEAST_LIMIT


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
