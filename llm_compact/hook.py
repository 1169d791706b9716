"""The step in front of every model's `execute`, where a compacted conversation is recognized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm.models import ModelWithAliases
    from llm.parts import Message

    from .turns import AnyModel

# Every prompt of every model imports this module and passes through it, so it imports nothing
# until there is something to do. This is `conversation.MARKER`; a test holds them together.
MARKER = "llm_compact"

_IS_WRAPPED = "is_wrapped_by_llm_compact"


def wrap_models(model_aliases: Iterable[ModelWithAliases]) -> None:
    """Wrap `execute` of all registered models, sync and async, each instance once."""
    for model in _models(model_aliases):
        wrap_execute(model)


def wrap_execute(model: AnyModel) -> None:
    """Let `execute` of this model show a compacted chain to adapters that don't read chains.

    Adapters older than llm 0.32 build their request from `conversation.responses`, which is empty
    when a conversation is continued from the log. Where the chain carries our marker, they get a
    conversation whose responses are made from it. llm records the response on the real one.
    """
    execute: Callable[..., Any] = model.execute
    # Models can be singletons of their module, and come by each time that models are listed.
    if getattr(execute, _IS_WRAPPED, False):
        return

    @wraps(execute)
    def wrapped(prompt: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compacted(prompt.messages):
            from .turns import stand_in

            # llm passes the conversation by name; a plugin that hands a call on may not.
            if len(args) > 2:
                args = (*args[:2], stand_in(model, prompt, args[2]), *args[3:])
            else:
                kwargs["conversation"] = stand_in(model, prompt, kwargs.get("conversation"))
        return execute(prompt, *args, **kwargs)

    setattr(wrapped, _IS_WRAPPED, True)
    # A model whose attributes can't be set stays as it is: no `llm` command may fail for that.
    with suppress(AttributeError, TypeError, ValueError):
        model.execute = wrapped  # type: ignore[method-assign]


def is_compacted(messages: Sequence[Message]) -> bool:
    """Whether a chain begins as a compacted one does, told by its first message after system."""
    for message in messages:
        if message.role != "system":
            return any(MARKER in (_metadata(part) or ()) for part in message.parts)
    return False


def _metadata(part: Any) -> dict[str, Any] | None:
    return getattr(part, "provider_metadata", None)


def _models(model_aliases: Iterable[ModelWithAliases]) -> Iterator[AnyModel]:
    for entry in model_aliases:
        for model in (entry.model, entry.async_model):
            if model is not None:
                yield model
