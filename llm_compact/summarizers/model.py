"""An llm model as summarizer: one call, with the transcript of the head."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import llm
import pydantic
import yaml
from llm.parts import ReasoningPart, ToolCallPart

from ..check import without_thinking
from ..errors import SummarizerError
from ..language import words
from ..summary import Answer, Head, Usage
from ..transcript import new_boundary, transcript

# How llm, its adapters and providers word it when a request is larger than the window.
_TOO_LONG = re.compile(
    r"context (window|length|size)|maximum context|too many tokens|(prompt|input|request) (is )?too"
    r" (long|large)|token limit|exceeds? the (maximum|model)",
    re.IGNORECASE,
)
_STOP_KEYS = ("finish_reason", "stop_reason", "finishReason", "done_reason", "reason")
_LIMIT_OPTIONS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "num_predict")


@dataclass(frozen=True)
class Prompt:
    """A prompt file: its version is kept with each compaction."""

    version: str
    system: str
    prompt: str
    previous: str
    focus: str


@dataclass(frozen=True)
class ModelSummarizer:
    """Summarizes with one call of a model, sync or async."""

    model: Any
    options: Mapping[str, Any]
    key: str | None = None

    @property
    def name(self) -> str:
        model_id: str = self.model.model_id
        return model_id

    @property
    def prompt_version(self) -> str:
        return _prompt().version

    def summarize(self, head: Head, show: Callable[[str], None]) -> Answer:
        """Raises `SummarizerError` when the model raises, or the head exceeds its window."""
        system, prompt = _fill(head)
        arguments: dict[str, Any] = {**self.options, "stream": bool(self.model.can_stream)}
        if isinstance(self.model, (llm.KeyModel, llm.AsyncKeyModel)):
            arguments["key"] = self.key
        # Some models refuse a system prompt, and say so with this attribute of llm's OpenAI ones.
        if getattr(self.model, "allows_system_prompt", True):
            arguments["system"] = system
        else:
            prompt = f"{system}\n\n{prompt}"
        shown = _Shown(show)
        try:
            if isinstance(self.model, (llm.AsyncModel, llm.AsyncKeyModel)):
                return asyncio.run(_ask_async(self.model, prompt, arguments, shown))
            return _ask(self.model, prompt, arguments, shown)
        except Exception as ex:  # a model may raise anything, and each is told in one line
            raise _failure(ex, head) from ex


def model_summarizer(
    name: str, options: Sequence[tuple[str, str]], key: str | None
) -> ModelSummarizer:
    """Raises `SummarizerError` for an unknown model or an option that the model does not have."""
    from llm.cli import get_model_options

    model = _get_model(name)
    try:
        given = {
            option: value for option, value in model.Options(**dict(options)) if value is not None
        }
    except pydantic.ValidationError as ex:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in ex.errors())
        raise SummarizerError(f"Options for {name}: {wrong}") from ex
    return ModelSummarizer(model, {**get_model_options(model.model_id), **given}, key)


def _get_model(name: str) -> Any:
    try:
        return llm.get_model(name)
    except llm.UnknownModelError:
        raise SummarizerError(
            f"Unknown model: {name}. See llm models, or use -m extractive, which needs no model"
        ) from None


def _ask(model: Any, prompt: str, arguments: Mapping[str, Any], shown: _Shown) -> Answer:
    response = model.prompt(prompt, **arguments)
    for chunk in response:
        shown.add(chunk)
    return _answer(response, response.text(), response.messages(), response.tool_calls())


async def _ask_async(
    model: Any, prompt: str, arguments: Mapping[str, Any], shown: _Shown
) -> Answer:
    response = model.prompt(prompt, **arguments)
    async for chunk in response:
        shown.add(chunk)
    return _answer(
        response, await response.text(), await response.messages(), await response.tool_calls()
    )


def _answer(
    response: Any, text: str, messages: Sequence[llm.Message], calls: Sequence[llm.ToolCall]
) -> Answer:
    parts = [part for message in messages for part in message.parts]
    usage = Usage(response.input_tokens, response.output_tokens)
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
    children = reply.values() if isinstance(reply, dict) else reply
    if not isinstance(reply, (dict, list)):
        return None
    return next((found for child in children if (found := _stop_reason(child))), None)


def _limit_reached(response: Any, usage: Usage) -> str | None:
    """For adapters that keep no reply: an answer as long as the limit that was set was cut off."""
    limits = [getattr(response.prompt.options, name, None) for name in _LIMIT_OPTIONS]
    reached = any(limit and usage.output and usage.output >= limit for limit in limits)
    return "length" if reached else None


def _failure(ex: Exception, head: Head) -> SummarizerError:
    message = " ".join(str(ex).split()) or type(ex).__name__
    if _TOO_LONG.search(message):
        return SummarizerError(
            f"can't take the {head.tokens:,} tokens to summarize: {message}. "
            "Use -m with a model that has a larger context window, or -m extractive"
        )
    return SummarizerError(f"failed: {message}")


class _Shown:
    """Passes an answer on as it comes, without the reasoning that it may begin with."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._held: str | None = ""

    def add(self, chunk: str) -> None:
        if self._held is None:
            self._show(chunk)
            return
        self._held += chunk
        begun = self._held.lstrip()
        if "<think>".startswith(begun[:7]) or "<thinking>".startswith(begun[:10]):
            text = without_thinking(begun) if "</think" in begun else ""
        else:
            text = begun
        if text:
            self._held = None
            self._show(text)


def _fill(head: Head) -> tuple[str, str]:
    """The system prompt and the prompt for a head."""
    form = _prompt()
    boundary = new_boundary(head.messages, head.previous or "", head.focus or "")
    values = {
        "boundary": boundary,
        "transcript": transcript(head.messages, boundary),
        "language": words(head.language)["name"],
        "previous": "",
        "focus": "",
    }
    if head.previous:
        values["previous"] = _replace(form.previous, {**values, "summary": head.previous})
    if head.focus:
        values["focus"] = _replace(form.focus, {"text": head.focus})
    return _replace(form.system, values), _replace(form.prompt, values)


def _replace(template: str, values: Mapping[str, str]) -> str:
    # One pass, so that a "$name" inside a value stays what it is.
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), template).strip()


@cache
def _prompt() -> Prompt:
    path = files("llm_compact").joinpath("summarizers/prompts/summarize.yaml")
    return Prompt(**yaml.safe_load(path.read_text("utf-8")))
