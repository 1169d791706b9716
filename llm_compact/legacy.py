"""Conversations that were logged by an llm older than 0.32: rows of `responses`, and no messages.

`llm -c` rebuilds their messages from these rows, but only where the model is installed. This gives
the same messages without it. Like llm it leaves out what llm does not send any more in such a
conversation: attachments and reasoning.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import llm
import sqlite_utils
from llm.parts import Message, Part, TextPart, ToolCallPart

Rows = dict[str, list[dict[str, Any]]]
"Rows that belong to a response, by the id of the response."


def messages_of(db: sqlite_utils.Database, conversation_id: str, model: llm.Model) -> list[Message]:
    """The messages that `llm -c` would send in front of a new prompt, oldest first."""
    fragments = {
        kind: _rows(
            db,
            f"select response_id, content from {kind}_fragments "
            "join fragments on fragments.id = fragment_id {of_conversation} "
            f'order by {kind}_fragments."order"',
            conversation_id,
        )
        for kind in ("prompt", "system")
    }
    # llm sorts calls by the provider's id, and results as they were logged.
    calls = _rows(
        db, "select * from tool_calls {of_conversation} order by tool_call_id", conversation_id
    )
    results = _rows(db, "select * from tool_results {of_conversation} order by id", conversation_id)
    messages: list[Message] = []
    for row in db.query(
        "select id, prompt, system, response from responses where conversation_id = ? order by id",
        [conversation_id],
    ):
        id = row["id"]
        prompt = llm.Prompt(  # type: ignore[no-untyped-call]
            row["prompt"],
            model,
            fragments=[fragment["content"] for fragment in fragments["prompt"][id]],
            system=row["system"],
            system_fragments=[fragment["content"] for fragment in fragments["system"][id]],
            tool_results=[
                llm.ToolResult(
                    name=result["name"],
                    output=result["output"],
                    tool_call_id=result["tool_call_id"],
                )
                for result in results[id]
            ],
        )
        messages += [*prompt.messages, *_answer(row["response"], calls[id])]
    return messages


def fragments_of(db: sqlite_utils.Database, conversation_id: str) -> list[str]:
    """The texts of the fragments that its prompts and system prompts were made from."""
    return [
        row["content"]
        for row in db.query(
            "select distinct fragments.id, content from fragments join ("
            "select * from prompt_fragments union all select * from system_fragments"
            ") on fragment_id = fragments.id join responses on responses.id = response_id "
            "where conversation_id = ?",
            [conversation_id],
        )
    ]


def _answer(text: str | None, calls: list[dict[str, Any]]) -> list[Message]:
    parts: list[Part] = [TextPart(text=text)] if text else []
    parts += [
        ToolCallPart(
            name=call["name"],
            arguments=json.loads(call["arguments"]) or {},
            tool_call_id=call["tool_call_id"],
        )
        for call in calls
    ]
    return [Message(role="assistant", parts=parts)] if parts else []


def _rows(db: sqlite_utils.Database, sql: str, conversation_id: str) -> Rows:
    # One query for all responses: these tables have no index on response_id.
    of_conversation = "where response_id in (select id from responses where conversation_id = ?)"
    found: Rows = defaultdict(list)
    for row in db.query(sql.replace("{of_conversation}", of_conversation), [conversation_id]):
        found[row["response_id"]].append(row)
    return found
