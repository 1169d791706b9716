"""The step in front of every model's `execute`: where a compacted conversation is recognized, and
one that has grown too large is compacted if somebody wants that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm.models import ModelWithAliases
    from llm.parts import Message

    from .automatic import Session
    from .turns import AnyModel

# Every prompt of every model imports this module and passes through it, so it imports nothing
# until there is something to do. This is `conversation.MARKER`; a test holds them together.
MARKER = "llm_compact"

_IS_WRAPPED = "is_wrapped_by_llm_compact"
_ARGUMENTS = ("stream", "response", "conversation", "key")

_session: ContextVar[Session | None] = ContextVar("llm_compact_session", default=None)
# A context does not reach the threads of plugins that run models in a pool.
_process_session: Session | None = None


@contextmanager
def active(session: Session) -> Iterator[None]:
    """Let a session look after the conversations of this context."""
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)


@contextmanager
def active_in_process(session: Session) -> Iterator[None]:
    """Let a session look after the conversations of this process, whatever thread they are in."""
    global _process_session
    # A tool may run an llm command of its own.
    before, _process_session = _process_session, session
    try:
        yield
    finally:
        _process_session = before


def wrap_models(model_aliases: Iterable[ModelWithAliases]) -> None:
    """Wrap `execute` of all registered models, sync and async, each instance once."""
    for model in _models(model_aliases):
        wrap_execute(model)


def wrap_execute(model: AnyModel) -> None:
    """Let `execute` of this model ask the active session first, if there is one.

    A compacted chain is shown to adapters that don't read chains in any case. Adapters older
    than llm 0.32 build their request from `conversation.responses`, which is empty when a
    conversation is continued from the log. Where the chain carries our marker, they get a
    conversation whose responses are made from it. llm records the response on the real one.
    """
    execute: Callable[..., Any] = model.execute
    # Models can be singletons of their module, and come by each time that models are listed.
    if getattr(execute, _IS_WRAPPED, False):
        return

    @wraps(execute)
    def wrapped(prompt: Any, *args: Any, **kwargs: Any) -> Any:
        session = _session.get() or _process_session
        if session is None and not is_compacted(prompt.messages):
            return execute(prompt, *args, **kwargs)
        # llm passes these by name; a plugin that hands a call on may not.
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        return _answer(session, model, execute, prompt, given)

    setattr(wrapped, _IS_WRAPPED, True)
    # A model whose attributes can't be set stays as it is: no `llm` command may fail for that.
    with suppress(AttributeError, TypeError, ValueError):
        model.execute = wrapped  # type: ignore[method-assign]


def _answer(
    session: Session | None,
    model: AnyModel,
    execute: Callable[..., Any],
    prompt: Any,
    given: dict[str, Any],
) -> Any:
    from llm import AsyncKeyModel, AsyncModel

    from .turns import Call

    call = Call(model, execute, prompt, given)
    if session and session.wants(call):
        is_async = isinstance(model, (AsyncModel, AsyncKeyModel))
        return session.generate_async(call) if is_async else session.generate(call)
    if is_compacted(prompt.messages):
        return call.make()
    return execute(prompt, **given)


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
