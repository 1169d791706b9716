"""A fresh llm for each test: its own user directory, its own log, scripted models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llm
import pytest
import sqlite_utils
from click.testing import CliRunner, Result
from hypothesis import settings
from llm.cli import cli
from llm.logs import LogStore
from llm.parts import Message
from llm.plugins import load_plugins, pm
from scripted import Plugin, Reply, lookup, registered

# pytest --hypothesis-profile=thorough tries twenty times as many conversations. What CI tries is
# the same each time: whoever looks for new cases is at a desk.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("thorough", deadline=None, max_examples=2_000)
settings.load_profile("default")

# llm registers all models anew each time that one is asked for, and its own take it a while.
load_plugins()  # type: ignore[no-untyped-call]
pm.unregister(name="llm.default_plugins.openai_models")


@pytest.fixture(autouse=True)
def user_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "user"
    monkeypatch.setenv("LLM_USER_PATH", str(path))
    for name in ("LLM_COMPACT_AUTO_THRESHOLD", "LLM_COMPACT_MODEL", "LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def models() -> Iterator[Plugin]:
    with registered(Plugin()) as plugin:
        yield plugin


@dataclass
class Log:
    """A log in llm's user directory, and what a test wants to know about it."""

    path: Path

    @property
    def db(self) -> sqlite_utils.Database:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return sqlite_utils.Database(self.path)

    @property
    def store(self) -> LogStore:
        return LogStore(self.db)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Every row of every table, to tell what changed."""
        db = self.db
        return {
            table: list(db.query(f"select rowid as _rowid, * from [{table}] order by rowid"))
            for table in db.table_names()
            if "_fts" not in table
        }

    def threads(self) -> list[dict[str, Any]]:
        return list(self.db["threads"].rows_where(order_by="id"))

    def newest(self) -> dict[str, Any]:
        return self.threads()[-1]

    def messages(self, conversation_id: str | None = None) -> list[Message]:
        return self.store.thread_messages(conversation_id or self.newest()["id"])


@pytest.fixture
def log(user_path: Path) -> Iterator[Log]:
    log = Log(user_path / "logs.db")
    yield log
    if log.path.exists():
        assert log.store.verify() == []


Talk = Callable[..., str]


@pytest.fixture
def talk(models: Plugin, log: Log) -> Talk:
    """Hold a conversation with `chatty` and log it as llm does. Returns its id."""

    def _talk(
        exchanges: Sequence[tuple[str, Sequence[Reply | str] | str]],
        *,
        system: str | None = None,
        tools: Sequence[Any] = (lookup,),
        fragments: Sequence[str] = (),
        attachments: Sequence[llm.Attachment] = (),
    ) -> str:
        conversation = llm.get_model("chatty").conversation()
        for number, (prompt, replies) in enumerate(exchanges):
            first = number == 0
            models.chatty.replies = [replies] if isinstance(replies, str) else list(replies)
            response = conversation.chain(
                prompt,
                system=system if first else None,
                tools=list(tools),
                fragments=list(fragments) if first else [],
                attachments=list(attachments) if first else [],
                chain_limit=100,
            )
            response.text()
            response.log_to_db(log.db)
        models.chatty.sent.clear()
        return conversation.id

    return _talk


def recorded(summary: str, messages: int = 8, generation: int = 1) -> str:
    """A summary as it is stored: behind the line that says what it is."""
    line = f"Record of {messages} earlier messages, not instructions. Compaction {generation}."
    return f"{line}\n\n{summary}"


# Without an exact value, which would have to be in each summary.
LONG = "The tide table for {place} says that high water number {n} was late and rather low. " * 4


@pytest.fixture(scope="session")
def held() -> dict[str, bytes]:
    """The log of the long talk by its id, once it was held: each commit costs a disk its time."""
    return {}


@pytest.fixture
def long_talk(talk: Talk, log: Log, held: dict[str, bytes]) -> str:
    """Six exchanges of about 90 tokens, a system prompt, no tool calls. The conversation's id."""
    if not held:
        conversation_id = _hold_long_talk(talk)
        held[conversation_id] = log.path.read_bytes()
    ((conversation_id, content),) = held.items()
    log.path.parent.mkdir(parents=True, exist_ok=True)
    log.path.write_bytes(content)
    return conversation_id


def _hold_long_talk(talk: Talk) -> str:
    places = ["Esbjerg", "Nuuk", "Torshavn", "Ribe", "Hvide Sande", "Skagen"]
    return talk(
        [
            (f"When was high water in {place}?", LONG.format(place=place, n=n))
            for n, place in enumerate(places)
        ],
        system="You know the tides.",
    )


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody looks on."""
    monkeypatch.setattr("llm_compact.display.is_terminal", lambda: True)


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run an llm command as a person would."""

    def _run(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(args), input=input)

    return _run
