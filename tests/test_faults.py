"""Failures at every moment of a compaction: the log is as before, or fully compacted."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlite_utils
from click.testing import Result
from conftest import Log
from llm.cli import load_conversation
from scripted import Plugin, Reply

import llm_compact
from llm_compact.conversation import text_of
from llm_compact.errors import AlreadyCompacted, StoreError

Run = Callable[..., Result]


@contextmanager
def connections(behave: Callable[[sqlite3.Connection], None]) -> Iterator[None]:
    """Each new connection is told how to behave."""
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        statements = 0
        fails_at = -1

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if Connection.statements or sql.lower().startswith("begin immediate"):
                Connection.statements += 1
                if Connection.statements == Connection.fails_at:
                    raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *args)

    def patched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs, factory=Connection)
        behave(connection)
        return connection

    sqlite3.connect = patched  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = connect


def test_a_failure_at_any_statement_of_the_write_leaves_the_log_as_it_was_or_compacted(
    long_talk: str, log: Log
) -> None:
    before, original = log.rows(), log.path.read_bytes()
    statement, failures = 0, 0
    is_reached = True
    while is_reached:
        statement += 1
        log.path.write_bytes(original)
        made: list[Any] = []

        def fail(connection: Any, at: int = statement, made: list[Any] = made) -> None:
            made.append(type(connection))
            made[-1].fails_at = at

        failure = None
        with connections(fail):
            try:
                llm_compact.compact(model="extractive")
            except StoreError as ex:
                failure = str(ex)
        if failure is None:
            # Nothing failed, or sqlite-utils tried again.
            assert len(log.threads()) == 2, f"statement {statement}"
        else:
            assert "disk I/O error" in failure and "Nothing was written" in failure
            assert log.rows() == before, f"statement {statement}"
            failures += 1
        is_reached = made[-1].statements >= statement

    assert failures > 50


def test_a_full_disk_is_told_in_one_line(long_talk: str, log: Log, run: Run) -> None:
    before = log.rows()
    pages = log.db.execute("pragma page_count").fetchone()[0]

    with connections(lambda c: c.execute(f"pragma max_page_count = {pages}") and None):
        result = run("compact", "-c", "-m", "extractive", "--quiet")

    assert result.exit_code == 1
    assert "database or disk is full. Nothing was written" in result.stderr
    assert log.rows() == before


def test_a_process_that_is_killed_at_any_moment_leaves_no_half_compaction(
    long_talk: str, log: Log
) -> None:
    def compact_in_a_process() -> int:
        child = os.fork()
        if child == 0:
            try:
                llm_compact.compact(long_talk, model="extractive", again=True)
            finally:
                os._exit(0)
        return child

    started = time.monotonic()
    os.waitpid(compact_in_a_process(), 0)
    whole = time.monotonic() - started
    chooser = random.Random(7)
    finished = 0
    for _ in range(200):
        child = compact_in_a_process()
        time.sleep(chooser.uniform(0, 1.5 * whole))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        finished += os.WIFEXITED(status)

    rows = list(log.db["compactions"].rows)
    threads = {thread["id"]: thread for thread in log.threads()}
    assert len(rows) == len(threads) - 1
    tails = {str(log.messages(row["conversation_id"])[3:]) for row in rows}
    assert tails == {str(log.messages(long_talk)[-4:])}
    assert all(log.db["turns"].count_where("id = ?", [row["turn_id"]]) for row in rows)
    assert 0 < finished < 200, "the moments were not spread over the whole of it"
    assert log.db.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_database_that_stays_locked_is_told(
    long_talk: str, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_compact.log.LOCK_TIMEOUT_MS", 200)
    before = log.rows()
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('begin immediate'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(log.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        result = run("compact", "-c", "-m", "extractive", "--quiet")
        other.communicate()

    assert result.exit_code == 1
    assert "database is locked. Nothing was written" in result.stderr
    assert log.rows() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_database_is_told(long_talk: str, log: Log, run: Run) -> None:
    log.path.chmod(0o400)
    try:
        dry = run("compact", "-c", "-m", "extractive", "--dry-run")
        result = run("compact", "-c", "-m", "extractive", "--quiet")
    finally:
        log.path.chmod(0o600)

    assert dry.exit_code == 0
    assert result.exit_code == 1
    assert "readonly database" in result.stderr


def test_of_two_compactions_at_once_one_wins(long_talk: str, models: Plugin, log: Log) -> None:
    both_have_read = threading.Barrier(2, timeout=20)

    class Together(Reply):
        def finish(self, response: Any) -> None:
            both_have_read.wait()
            super().finish(response)

    models.summer.replies = [Together("## Goal\nKnow the tides."), Together("## Goal\nTides.")]
    outcomes: list[object] = []

    def compact() -> None:
        try:
            outcomes.append(llm_compact.compact(long_talk, model="summer"))
        except AlreadyCompacted as ex:
            outcomes.append(str(ex))

    threads = [threading.Thread(target=compact) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (won,) = [outcome for outcome in outcomes if isinstance(outcome, llm_compact.Compaction)]
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert won.id in refused
    assert [thread["id"] for thread in log.threads()] == [long_talk, won.id]


TOGETHER = """
import fcntl, os, sys, time
sys.path.insert(0, sys.argv.pop(1))
from llm.cli import cli
from llm.plugins import pm
from scripted import Plugin, Script
number, processes = int(sys.argv.pop(1)), int(sys.argv.pop(1))
def all_are_here(what):
    here = os.environ["LLM_USER_PATH"]
    open(os.path.join(here, f"{what}-{number}"), "w").close()
    while sum(name.startswith(f"{what}-") for name in os.listdir(here)) < processes:
        time.sleep(0.01)
class Together(Script):
    def next(self, prompt, key=None):
        all_are_here("summarizes")
        return super().next(prompt, key)
class Alone(Script):
    def next(self, prompt, key=None):
        # llm itself fails where it logs at the moment at which another process writes.
        all_are_here("answers")
        self.lock = open(os.path.join(os.environ["LLM_USER_PATH"], "lock"), "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        return super().next(prompt, key)
models = Plugin()
models.chatty = Alone()
models.summer = Together([f"Process {number} was told of the tides of six places."])
pm.register(models, name="scripted_models")
cli()
"""


def test_of_processes_that_compact_one_conversation_at_once_all_go_on_in_the_same(
    long_talk: str, log: Log
) -> None:
    tests, count = str(Path(__file__).parent), 3
    flags = ["--auto-threshold", "400", "--compact-model", "summer"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, tests, str(n), str(count), "-c", f"Ask {n}?", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LLM_USER_PATH": str(log.path.parent)},
        )
        for n in range(count)
    ]
    told = [process.communicate(timeout=60)[1] for process in processes]

    assert [process.returncode for process in processes] == [0] * count, "".join(told)
    (row,) = log.db["compactions"].rows
    new = row["conversation_id"]
    assert [thread["id"] for thread in log.threads()] == [long_talk, new]
    moved = f"{long_talk} was compacted by another process, going on in {new}\n"
    assert sorted(moved in text for text in told) == [False, True, True]
    asked = [
        turn["parent_message_hash"] for turn in log.db["turns"].rows_where("thread_id=?", [new])
    ]
    assert len(asked) == 1 + count
    assert len(log.messages(long_talk)) == 13


def test_a_summary_is_not_paid_for_where_another_process_has_made_one(
    long_talk: str, models: Plugin, log: Log
) -> None:
    conversation = load_conversation(long_talk)
    made = llm_compact.compact(model="extractive")

    with llm_compact.auto(threshold="400", model="summer", database=log.path):
        response = conversation.prompt("And today?")
        response.text()
    response.log_to_db(log.db)

    assert models.summer.sent == []
    assert conversation.id == made.id
    assert log.messages(made.id)[:-2] == models.chatty.sent[0].messages[:-1]
    assert text_of(log.messages(made.id)[-2]) == "And today?"
    assert len(log.threads()) == 2


def test_what_another_process_made_is_not_taken_where_it_is_too_large(
    long_talk: str, models: Plugin, log: Log
) -> None:
    conversation = load_conversation(long_talk)
    made = llm_compact.compact(model="extractive", keep="5x")

    with llm_compact.auto(threshold="300", model="extractive", database=log.path):
        conversation.prompt("And today?").text()

    assert conversation.id not in (long_talk, made.id)
    assert len(log.threads()) == 3


def test_what_was_said_here_and_is_not_logged_yet_is_not_lost_to_what_another_process_made(
    long_talk: str, models: Plugin, log: Log
) -> None:
    conversation = load_conversation(long_talk)
    conversation.prompt("This is not logged.").text()
    made = llm_compact.compact(model="extractive")

    with llm_compact.auto(threshold="400", model="extractive", database=log.path):
        conversation.prompt("And today?").text()

    assert conversation.id != made.id
    assert "This is not logged." in str(log.messages(conversation.id))


def test_turns_of_another_process_are_never_lost(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    class Meanwhile(Reply):
        def finish(self, response: Any) -> None:
            run("--cid", long_talk, "One more thing")
            super().finish(response)

    models.summer.replies = [Meanwhile("## Goal\nKnow the tides.")]
    refused = run("compact", "--cid", long_talk, "-m", "summer")
    models.summer.replies = ["## Goal\nKnow the tides."]

    done = run("compact", "--cid", long_talk, "-m", "summer")

    assert (refused.exit_code, done.exit_code) == (1, 0)
    assert log.messages()[-2].parts[0].text == "One more thing"
    assert sqlite_utils.Database(log.path)["compactions"].count == 1
