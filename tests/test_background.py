"""Waiting for work in a thread of its own, and giving it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from llm_compact.background import Steps, Wait, drive, drive_async, in_background

HERE: ContextVar[str] = ContextVar("here", default="nowhere")

Drive = Callable[[Steps[Any]], Any]


def drive_in_a_loop(steps: Steps[Any]) -> Any:
    return asyncio.run(drive_async(steps))


both = pytest.mark.parametrize("driven", [drive, drive_in_a_loop])


def fail() -> None:
    raise KeyError("tide")


def hang() -> None:
    threading.Event().wait()


@both
def test_steps_get_what_they_wait_for_in_order(driven: Drive) -> None:
    def steps() -> Steps[str]:
        one = yield Wait(in_background(lambda: "one"), 30)
        two = yield Wait(in_background(lambda: f"{one} two"), 30)
        return f"{two} three"

    assert driven(steps()) == "one two three"


@both
def test_steps_without_a_wait_come_to_their_result(driven: Drive) -> None:
    def steps() -> Steps[int]:
        return 6
        yield

    assert driven(steps()) == 6


@both
@pytest.mark.parametrize("work, error", [(fail, KeyError), (hang, TimeoutError)])
def test_steps_may_go_on_after_a_failure(
    work: Callable[[], None], error: type[Exception], driven: Drive
) -> None:
    def steps() -> Steps[str]:
        with suppress(error):
            yield Wait(in_background(work), 0.05 if work is hang else 30)
        later: str = yield Wait(in_background(lambda: "went on"), 30)
        return later

    assert driven(steps()) == "went on"


@both
def test_a_failure_that_the_steps_let_pass_is_passed_on(driven: Drive) -> None:
    closed = []

    def steps() -> Steps[None]:
        try:
            yield Wait(in_background(fail), 30)
        finally:
            closed.append(True)

    with pytest.raises(KeyError, match="tide"):
        driven(steps())
    assert closed == [True]


@both
def test_ctrl_c_closes_the_steps(driven: Drive) -> None:
    closed = []

    def press() -> None:
        raise KeyboardInterrupt

    def steps() -> Steps[None]:
        try:
            yield Wait(in_background(press), 30)
        except Exception:
            pytest.fail("Ctrl-C is no failure of the work")
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        driven(steps())
    assert closed == [True]


def test_the_loop_is_not_blocked() -> None:
    release = threading.Event()

    def steps() -> Steps[str]:
        done: bool = yield Wait(in_background(lambda: release.wait(30)), 30)
        return f"released: {done}"

    async def other() -> None:
        release.set()

    async def both_of_them() -> list[Any]:
        return await asyncio.gather(drive_async(steps()), other())

    assert asyncio.run(both_of_them())[0] == "released: True"


def test_a_cancelled_task_gives_the_work_up() -> None:
    closed = []

    def steps() -> Steps[None]:
        try:
            yield Wait(in_background(hang), 30)
        finally:
            closed.append(True)

    async def cancelled() -> None:
        task = asyncio.ensure_future(drive_async(steps()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert closed == [True]


def test_work_that_ends_after_it_was_given_up_disturbs_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    release, ended = threading.Event(), threading.Event()

    def late() -> str:
        release.wait(30)
        ended.set()
        return "too late"

    future = in_background(late)
    future.cancel()
    release.set()

    assert ended.wait(30)
    for thread in threading.enumerate():
        if thread.name == "llm-compact" and thread.daemon:
            thread.join(0.1)
    assert future.cancelled()
    assert capfd.readouterr().err == ""


def test_work_runs_in_the_context_of_whoever_began_it_and_keeps_no_process_alive() -> None:
    HERE.set("harbour")

    where, is_daemon = in_background(
        lambda: (HERE.get(), threading.current_thread().daemon)
    ).result(30)

    assert (where, is_daemon) == ("harbour", True)
