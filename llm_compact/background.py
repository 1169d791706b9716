"""Work in a thread of its own, to be waited for or given up, in sync and async code alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Wait:
    """What some steps wait for, and how long at most (seconds)."""

    future: Future[Any]
    seconds: float


Steps: TypeAlias = Generator[Wait, Any, T]
"Steps that wait for something in between, and come to a result."


def in_background(function: Callable[[], T]) -> Future[T]:
    """Begin a function in a thread that does not keep the process alive.

    Ctrl-C reaches whoever waits for it, and a function that hangs is left behind.
    """
    future: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        # Whoever gave up waiting has cancelled the future.
        with suppress(InvalidStateError):
            try:
                future.set_result(context.run(function))
            except BaseException as ex:
                future.set_exception(ex)

    Thread(target=run, name="llm-compact", daemon=True).start()
    return future


def drive(steps: Steps[T]) -> T:
    """Go through the steps, blocking where they wait. What waits too long gets a `TimeoutError`."""
    try:
        wait = next(steps)
        while True:
            try:
                result = wait.future.result(wait.seconds)
            except FutureTimeoutError:
                wait = steps.throw(TimeoutError())
            except Exception as ex:
                wait = steps.throw(ex)
            else:
                wait = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()


async def drive_async(steps: Steps[T]) -> T:
    """The same in an event loop, which is not blocked."""
    try:
        wait = next(steps)
        while True:
            try:
                result = await asyncio.wait_for(asyncio.wrap_future(wait.future), wait.seconds)
            except asyncio.TimeoutError:
                wait = steps.throw(TimeoutError())
            except Exception as ex:
                wait = steps.throw(ex)
            else:
                wait = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()
