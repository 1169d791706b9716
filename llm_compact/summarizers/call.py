"""One call of an llm model, sync or async, and what can be told from its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llm
from llm.parts import Message, ReasoningPart, ToolCallPart

from ..check import is_boundary_line, without_thinking
from ..errors import SummarizerError
from ..overflow import Overflow, overflow_in
from ..prefix import LIMIT_OPTIONS, Prefix
from ..summary import Answer, Usage
from ..tokens import cached_tokens
from ..turns import ChainPrompt, stand_in

_STOP_KEYS = ("finish_reason", "stop_reason", "finishReason", "done_reason")


class ContextOverflow(SummarizerError):
    """The request did not fit the model's context window."""

    def __init__(self, message: str, overflow: Overflow) -> None:
        super().__init__(message)
        self.overflow = overflow


def ask(
    model: Any,
    system: str,
    prompt: str,
    *,
    options: Mapping[str, Any],
    key: str | None,
    show: Callable[[str], None],
    schema: Mapping[str, Any] | None = None,
) -> Answer:
    """The model's answer, passed to `show` as it comes. No tools, no conversation, no log.

    `schema` is a JSON schema that the answer should follow.

    Raises `ContextOverflow` for a request that is too long, `SummarizerError` for anything else
    that the model raises.
    """
    arguments: dict[str, Any] = {**options, "stream": bool(model.can_stream)}
    if isinstance(model, (llm.KeyModel, llm.AsyncKeyModel)):
        arguments["key"] = key
    if schema:
        arguments["schema"] = dict(schema)
    # Some models refuse a system prompt, and say so with this attribute of llm's OpenAI ones.
    if system and getattr(model, "allows_system_prompt", True):
        arguments["system"] = system
    elif system:
        prompt = f"{system}\n\n{prompt}"
    return _answered(model, lambda: model.prompt(prompt, **arguments), show)


def ask_behind(
    model: Any, messages: Sequence[Message], prefix: Prefix, request: str, *, key: str | None
) -> Answer:
    """The model's answer to a request that follows a conversation as it was sent before.

    Tools are declared and can't run: they have no implementation, and nobody looks at a call.
    Adapters that don't read chains are shown the conversation in their own form. Raises what
    `ask` does.
    """

    def begin() -> Any:
        prompt = llm.Prompt(  # type: ignore[no-untyped-call]
            request, model, tools=list(prefix.tools), options=model.Options(**prefix.options)
        )
        sent = ChainPrompt(prompt, [*messages, llm.user(request)])
        kind: Any = llm.AsyncResponse if _is_async(model) else llm.Response
        conversation = stand_in(model, sent, None)
        return kind(sent, model, bool(model.can_stream), conversation=conversation, key=key)

    return _answered(model, begin, lambda text: None)


def _answered(model: Any, begin: Callable[[], Any], show: Callable[[str], None]) -> Answer:
    shown = _Shown(show)
    try:
        return _run(_read_async(begin, shown)) if _is_async(model) else _read(begin, shown)
    except KeyboardInterrupt:
        raise
    except BaseException as ex:  # a model may raise anything, and each is told in one line
        message = _told(ex)
        overflow = overflow_in(message)
        if overflow:
            raise ContextOverflow(f"failed: {message}", overflow) from ex
        raise SummarizerError(f"failed: {message}") from ex


def _is_async(model: Any) -> bool:
    return isinstance(model, (llm.AsyncModel, llm.AsyncKeyModel))


def _told(ex: BaseException) -> str:
    try:
        return " ".join(str(ex).split()) or type(ex).__name__
    except Exception:
        return type(ex).__name__


def _run(answer: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(answer)
    # Called from a program with a loop of its own, which must not be entered again.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, answer).result()


def _read(begin: Callable[[], Any], shown: _Shown) -> Answer:
    response = begin()
    for chunk in response:
        shown.add(chunk)
    shown.finish()
    return _answer(response, response.text(), response.messages(), response.tool_calls())


async def _read_async(begin: Callable[[], Any], shown: _Shown) -> Answer:
    response = begin()
    async for chunk in response:
        shown.add(chunk)
    shown.finish()
    return _answer(
        response, await response.text(), await response.messages(), await response.tool_calls()
    )


def _answer(
    response: Any, text: str, messages: Sequence[llm.Message], calls: Sequence[llm.ToolCall]
) -> Answer:
    parts = [part for message in messages for part in message.parts]
    cached = cached_tokens(response.token_details or {})
    usage = Usage(response.input_tokens, response.output_tokens, cached=cached)
    return Answer(
        text=text,
        usage=usage,
        tool_calls=max(len(calls), sum(isinstance(part, ToolCallPart) for part in parts)),
        has_reasoning=any(isinstance(part, ReasoningPart) for part in parts),
        stop_reason=_stop_reason(response.response_json) or _limit_reached(response, usage),
    )


def _stop_reason(reply: Any) -> str | None:
    """Why the model stopped, wherever the provider's reply says so."""
    if isinstance(reply, dict):
        for key in _STOP_KEYS:
            if isinstance(reply.get(key), str):
                return str(reply[key])
        incomplete = reply.get("incomplete_details")
        if isinstance(incomplete, dict) and isinstance(incomplete.get("reason"), str):
            return str(incomplete["reason"])
    children = reply.values() if isinstance(reply, dict) else reply
    if not isinstance(reply, (dict, list)):
        return None
    return next((found for child in children if (found := _stop_reason(child))), None)


def _limit_reached(response: Any, usage: Usage) -> str | None:
    """For adapters that keep no reply: an answer as long as the limit that was set was cut off."""
    limits = [getattr(response.prompt.options, name, None) for name in LIMIT_OPTIONS]
    reached = any(limit and usage.output and usage.output >= limit for limit in limits)
    return "length" if reached else None


class _Shown:
    """Passes on what will be part of the summary: no reasoning, no line of the transcript."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._held: str | None = ""
        "The beginning, while it may be reasoning."
        self._line = ""
        "The line that is being written."

    def add(self, chunk: str) -> None:
        if self._held is None:
            self._add_text(chunk)
            return
        self._held += chunk
        begun = self._held.lstrip()
        if "<think>".startswith(begun[:7]) or "<thinking>".startswith(begun[:10]):
            text = without_thinking(begun).lstrip() if "</think" in begun else ""
        else:
            text = begun
        if text:
            self._held = None
            self._add_text(text)

    def finish(self) -> None:
        if self._is_held_back() and not is_boundary_line(self._line):
            self._show(self._line)

    def _add_text(self, text: str) -> None:
        for piece in text.splitlines(keepends=True):
            self._line += piece
            is_complete = piece.endswith("\n")
            if not self._is_held_back():
                self._show(piece)
            elif is_complete and not is_boundary_line(self._line):
                self._show(self._line)
            if is_complete:
                self._line = ""

    def _is_held_back(self) -> bool:
        # It may become a line that only copies the transcript.
        return self._line.startswith("=")
