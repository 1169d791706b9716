"""What a provider would object to in a chain of messages, told independently of the plugin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from llm.parts import AttachmentPart, Message, ReasoningPart, ToolCallPart, ToolResultPart

from llm_compact.tokens import message_tokens

AFTER = {
    None: {"system", "user"},
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant"},
}


def violations(chain: Sequence[Message]) -> set[tuple[str, str]]:
    """(what is wrong, the message it is wrong with), comparable between two chains."""
    found = set()
    for index, message in enumerate(chain):
        before = chain[index - 1] if index else None
        follows = before.role if before else None
        if follows == "user" and before is not None and _is_from_tools(before):
            follows = "tool"
        is_fine = message.role in AFTER[follows]
        # A user may speak after tool results, and attachments from tools come that way.
        if follows == "tool" and message.role in ("user", "tool"):
            is_fine = True
        if not is_fine:
            found.add((f"{message.role} after {follows}", key(message)))
        for id in _local_calls(message) - _results_behind(chain, index):
            found.add((f"call {id} without result", key(message)))
        for id in _local_results(message) - _calls_before(chain, index):
            found.add((f"result {id} without call", key(message)))
    return found


def key(message: Message) -> str:
    """A message's identity for a comparison: reasoning and our marker left out."""
    parts = []
    for part in message.parts:
        if isinstance(part, ReasoningPart):
            continue
        data = dict(part.to_dict())
        metadata = {
            k: v for k, v in (data.get("provider_metadata") or {}).items() if k != "llm_compact"
        }
        data["provider_metadata"] = metadata
        parts.append(data)
    return json.dumps([message.role, parts], sort_keys=True, default=str)


def count_tokens(chain: Iterable[Message]) -> int:
    """The plain count of some messages."""
    return sum(message_tokens(message) for message in chain)


def requests_of(chain: Sequence[Message]) -> list[Message]:
    """The user's messages, without those that carry what a tool returned."""
    return [
        message
        for index, message in enumerate(chain)
        if message.role == "user"
        and not (_is_from_tools(message) and index and chain[index - 1].role == "tool")
    ]


def _is_from_tools(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(p, AttachmentPart) for p in message.parts)


def _results_behind(chain: Sequence[Message], index: int) -> set[str | None]:
    found: set[str | None] = set()
    for message in chain[index + 1 :]:
        if message.role == "assistant" and found:
            break
        if message.role == "tool":
            found |= _local_results(message)
        elif message.role == "user":
            break
    return found


def _calls_before(chain: Sequence[Message], index: int) -> set[str | None]:
    found: set[str | None] = set()
    for message in reversed(chain[:index]):
        if message.role == "user":
            break
        if message.role == "assistant":
            found |= _local_calls(message)
        elif found:
            break
    return found


def _local_calls(message: Message) -> set[str | None]:
    return {
        p.tool_call_id
        for p in message.parts
        if isinstance(p, ToolCallPart) and not p.server_executed
    }


def _local_results(message: Message) -> set[str | None]:
    return {
        p.tool_call_id
        for p in message.parts
        if isinstance(p, ToolResultPart) and not p.server_executed
    }
