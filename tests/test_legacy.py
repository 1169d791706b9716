"""Conversations and whole logs of llm versions before 0.32."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llm
import llm.cli
import pytest
import sqlite_utils
from click.testing import Result
from conftest import LONG, Log
from llm.logs import LogStore
from llm.parts import Message, ToolCallPart
from old_log import OldLog
from oracle import count_tokens, violations
from scripted import Plugin, Reply, Scripted

from llm_compact.conversation import history_of, text_of
from llm_compact.log import open_log
from llm_compact.source import read_source

Run = Callable[..., Result]
OLD = ["0.13", "0.20", "0.27", "0.31"]
OLD_TABLES = [
    "conversations",
    "responses",
    "prompt_fragments",
    "system_fragments",
    "prompt_attachments",
    "tool_calls",
    "tool_results",
    "tool_responses",
    "tools",
    "schemas",
]


def sent_by_llm(path: Path, conversation_id: str) -> list[Message]:
    """What `llm -c` sends in front of a new prompt."""
    conversation = llm.cli.load_conversation(conversation_id, database=path)
    assert conversation is not None
    response = conversation.prompt("And now?")
    return list(response.prompt.messages[:-1])


def source_messages(path: Path, conversation_id: str) -> list[Message]:
    with open_log(path) as db:
        return list(read_source(db, conversation_id).messages)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_everything(log: OldLog) -> str:
    """A conversation with all that the old tables can hold."""
    id = log.conversation()
    tools = [("lookup", "scripted_models"), ("Toolkit_whereami", "scripted_models"), ("fn", None)]
    log.response(
        id,
        "Sum it up",
        "",
        system="  Be brief.\n",
        system_fragments=["  You know tides.  ", " "],
        fragments=["The novel. " * 100, "An appendix\n"],
        attachments=[llm.Attachment(type="image/png", content=b"\x89PNG")],
        tools=tools,
        calls=[("c2", "lookup", {"key": "ø"}), ("c1", "Toolkit_whereami", {})],
    )
    log.db["tool_instances"].insert(
        {"id": 7, "plugin": "scripted_models", "name": "Toolkit", "arguments": '{"root": "/srv"}'}
    )
    log.db["attachments"].insert({"id": "chart", "type": "image/png", "content": b"chart"})
    log.response(
        id,
        "",
        "Summed up. " + LONG.format(place="Ribe", n=1),
        tools=tools,
        results=[
            {"name": "lookup", "output": "Error: no ø", "tool_call_id": "c2", "exception": "E: ø"},
            {"name": "Toolkit_whereami", "output": "/srv", "tool_call_id": "c1", "instance_id": 7},
        ],
        reasoning="hm",
    )
    log.db["tool_results_attachments"].insert(
        {"tool_result_id": 1, "attachment_id": "chart", "order": 0}
    )
    log.db["schemas"].insert({"id": "s1", "content": '{"type": "object"}'})
    log.response(id, "As JSON", '{"height": 1.5}', schema_id="s1")
    log.response(
        id, None, "Nothing was asked.", attachments=[llm.Attachment(url="https://x.test/")]
    )
    log.response(id, "Again", LONG.format(place="Nuuk", n=2), system="Be brief.")
    log.response(id, "Call", "", calls=[("c1", "lookup", {"key": "y"})])
    log.response(
        id, "", "Called.", results=[{"name": "lookup", "output": "1", "tool_call_id": "c1"}]
    )
    log.response(id, None, "From a fragment", fragments=["An appendix\n"])
    for n in range(3):
        log.response(id, f"Question {n}?", LONG.format(place="Ribe", n=n))
    return id


@pytest.fixture
def everything(user_path: Path, models: Plugin, log: Log, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Scripted, "supports_schema", True)
    return of_everything(OldLog(user_path / "logs.db"))


def test_the_messages_are_those_that_llm_sends(everything: str, log: Log) -> None:
    messages = source_messages(log.path, everything)

    assert messages == sent_by_llm(log.path, everything)
    assert messages[0] == llm.system("You know tides.\n\nBe brief.")
    assert text_of(messages[1]).endswith("An appendix\n\nSum it up")
    assert [p.tool_call_id for p in messages[2].parts if isinstance(p, ToolCallPart)] == [
        "c1",
        "c2",
    ]


def test_a_model_that_is_not_installed_is_not_needed(everything: str, log: Log, run: Run) -> None:
    log.db.execute("update conversations set model = 'gone'")
    log.db.execute("update responses set model = 'gone'")

    dry = run("compact", "-c", "--dry-run")
    offline = run("compact", "-c", "-m", "extractive", "--keep", "2x")
    own = run("compact", "-c", "--again")

    assert (dry.exit_code, offline.exit_code) == (0, 0)
    assert own.exit_code == 1 and "Unknown model: gone" in own.stderr
    (turn,) = log.db["turns"].rows
    assert (turn["model"], turn["resolved_model"]) == ("gone", "extractive")


def test_llm_goes_on_in_the_compacted_conversation(
    everything: str, models: Plugin, log: Log, run: Run
) -> None:
    source = source_messages(log.path, everything)

    compacted = run("compact", "-c", "-m", "extractive", "--keep", "2x")

    assert compacted.exit_code == 0, compacted.stderr
    assert f"Original: llm -c --cid {everything}" in compacted.stderr
    chain = log.messages()
    assert list(history_of(chain).body) == source[-4:]
    assert text_of(chain[0]) == text_of(source[0])
    assert violations(chain) <= violations(source)
    went_on = run("-c", "Next?")
    assert went_on.exit_code == 0, went_on.output
    sent = models.chatty.sent[-1]
    assert sent.messages[:-1] == chain
    # The toolbox comes back as it was configured, the function that was no plugin's does not.
    assert sorted(tool.name for tool in sent.tools) == ["Toolkit_whereami", "lookup"]
    (toolkit,) = (tool for tool in sent.tools if tool.name == "Toolkit_whereami")
    assert toolkit.implementation is not None and toolkit.implementation() == "/srv"


def test_the_record_leads_back_to_the_original(everything: str, log: Log, run: Run) -> None:
    source = source_messages(log.path, everything)

    run("compact", "-c", "-m", "extractive", "--keep", "2x")

    (row,) = log.db["compactions"].rows
    assert row["source_conversation_id"] == everything
    assert log.store.load_chain(row["source_tip_hash"]) == source
    assert row["tokens_before"] == count_tokens(source)
    assert log.newest()["forked_from"] is None
    assert log.newest()["name"] == "Old talk"
    assert log.db.execute("pragma foreign_key_check").fetchall() == []
    # The whole original is found from the next generation, too.
    run("-c", "Next?")
    with open_log(log.path) as db:
        assert list(read_source(db, None).originals[: len(source) - 1]) == source[1:]


def test_fragments_are_stored_by_reference(everything: str, log: Log, run: Run) -> None:
    run("compact", "-c", "-m", "extractive", "--keep", "2x")

    stored = "".join(f"{row['text']}{row['payload']}" for row in log.db["parts"].rows)
    assert "The novel. The novel." not in stored.replace(text_of(log.messages()[2]), "")
    assert log.db["part_fragments"].count > 0
    assert log.db["fragments"].count == 4


def test_the_rows_of_the_original_stay_as_they_were(everything: str, log: Log, run: Run) -> None:
    before = {table: rows for table, rows in log.rows().items() if table in OLD_TABLES}

    run("compact", "-c", "-m", "extractive", "--keep", "2x")

    assert {table: rows for table, rows in log.rows().items() if table in OLD_TABLES} == before
    assert source_messages(log.path, everything) == sent_by_llm(log.path, everything)


def test_the_same_point_is_compacted_once(user_path: Path, log: Log, run: Run) -> None:
    old = OldLog(log.path)
    id = old.long_talk()
    run("compact", "-c", "-m", "extractive")
    first = log.newest()["id"]

    refused = run("compact", "--cid", id, "-m", "extractive")
    again = run("compact", "--cid", id, "-m", "extractive", "--again")

    assert refused.exit_code == 1
    assert f"Already compacted as {first}" in refused.stderr
    assert again.exit_code == 0
    # What an old llm adds makes it another point.
    old.response(id, "One more?", LONG.format(place="Nuuk", n=9))
    assert run("compact", "--cid", id, "-m", "extractive").exit_code == 0


@pytest.mark.parametrize("how", ["old", "new"])
def test_what_is_said_meanwhile_is_not_cut_off(
    how: str, log: Log, models: Plugin, run: Run
) -> None:
    old = OldLog(log.path)
    id = old.long_talk()

    class Meanwhile(Reply):
        def finish(self, response):  # type: ignore[no-untyped-def]
            if how == "old":
                old.response(id, "One more thing", "Yes?")
            else:
                run("--cid", id, "One more thing")
            super().finish(response)

    models.summer.replies = [Meanwhile("## Goal\nKnow the tides.")]

    result = run("compact", "--cid", id, "-m", "summer", "--json")

    assert result.exit_code == 1
    assert "went on while it was summarized" in result.stderr
    assert "compactions" not in log.db.table_names()


def test_a_conversation_that_went_on_with_a_newer_llm(log: Log, models: Plugin, run: Run) -> None:
    id = OldLog(log.path).long_talk()
    # llm takes the model of such a conversation from the old row.
    assert run("--cid", id, "Do you still know?", "-m", "summer").exit_code == 0
    source = sent_by_llm(log.path, id)
    assert len(source) == 15

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 0, result.stderr
    thread = log.newest()
    assert thread["forked_from"] == id
    (row,) = log.db["compactions"].rows
    assert row["source_tip_hash"] == log.store.thread_tip(id)
    assert row["messages_summarized"] + row["messages_kept"] == 14
    (turn,) = log.db["turns"].rows_where("thread_id = ?", [thread["id"]])
    assert turn["model"] == "chatty"
    assert list(history_of(log.messages()).body) == source[-4:]


def test_a_thread_without_messages_does_not_hide_the_old_rows(log: Log, run: Run) -> None:
    id = OldLog(log.path, "now").long_talk()
    log.store.create_thread(id=id, name="empty")

    assert source_messages(log.path, id)[0] == llm.system("You know the tides.")
    assert run("compact", "--cid", id, "-m", "extractive").exit_code == 0


def test_an_old_conversation_without_responses_is_empty(log: Log, run: Run) -> None:
    id = OldLog(log.path).conversation()

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 1
    assert result.stderr == f"Error: Conversation {id} is empty\n"


@pytest.mark.parametrize("version", OLD)
def test_a_dry_run_does_not_even_migrate(version: str, log: Log, run: Run) -> None:
    id = OldLog(log.path, version).long_talk()
    before = digest(log.path)

    result = run("compact", "-c", "--dry-run")

    assert result.exit_code == 0, result.stderr
    assert f"Would compact conversation {id}" in result.stdout
    assert digest(log.path) == before
    assert "threads" not in log.db.table_names()


@pytest.mark.parametrize("version", OLD)
def test_a_log_that_was_never_migrated_is_compacted(version: str, log: Log, run: Run) -> None:
    id = OldLog(log.path, version).long_talk()

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 0, result.stderr
    (row,) = log.db["compactions"].rows
    assert row["source_conversation_id"] == id
    assert log.messages()[0].role == "system"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--cid", "01nope", "-m", "extractive"),
        ("-c", "-m", "gpt-99"),
        ("-c", "-m", "extractive", "--keep", "6x"),
        ("-c", "-m", "summer"),
    ],
    ids=["unknown id", "unknown model", "nothing to compact", "no summary"],
)
def test_a_refusal_does_not_migrate(
    arguments: tuple[str, ...], log: Log, models: Plugin, run: Run
) -> None:
    OldLog(log.path, "0.20").long_talk()
    models.summer.replies = [""]
    before = digest(log.path)

    assert run("compact", *arguments).exit_code in (1, 3)

    assert digest(log.path) == before


def test_what_is_said_meanwhile_in_an_old_log_does_not_migrate_it(
    log: Log, models: Plugin, run: Run
) -> None:
    old = OldLog(log.path, "0.20")
    id = old.long_talk()
    after: list[str] = []

    class Meanwhile(Reply):
        def finish(self, response):  # type: ignore[no-untyped-def]
            old.response(id, "One more thing", "Yes?")
            after.append(digest(log.path))
            super().finish(response)

    models.summer.replies = [Meanwhile("## Goal\nKnow the tides.")]

    assert run("compact", "-c", "-m", "summer").exit_code == 1
    assert [digest(log.path)] == after


def test_an_empty_file_is_an_empty_log_and_stays_one(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "new.db"
    path.touch()

    result = run("compact", "-c", "-d", str(path))

    assert result.stderr == "Error: No conversations found in the log\n"
    assert path.read_bytes() == b""


def test_an_old_log_that_is_locked_is_waited_for(log: Log, run: Run) -> None:
    OldLog(log.path, "0.20").long_talk()
    code = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('begin exclusive'); print('locked', flush=True); sys.stdin.read();"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(log.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("llm_compact.log.LOCK_TIMEOUT_MS", 50)
            locked = run("compact", "-c", "--dry-run")
        assert other.stdin is not None
        other.stdin.close()

    assert locked.exit_code == 1
    assert "database is locked" in locked.stderr
    assert run("compact", "-c", "--dry-run").exit_code == 0


def test_an_id_that_sorts_behind_ours_is_told(log: Log, models: Plugin, run: Run) -> None:
    id = OldLog(log.path).long_talk("zz-my-talk")

    result = run("compact", "-c", "-m", "extractive")

    new = next(thread["id"] for thread in log.threads() if thread["id"] != id)
    assert f"Go on: llm -c --cid {new}. Original: llm -c --cid {id}" in result.stderr
    chain = log.messages(new)
    assert run("-c", "--cid", new, "Next?").exit_code == 0
    assert models.chatty.sent[-1].messages[:-1] == chain


def test_only_the_database_that_was_named_changes(tmp_path: Path, log: Log, run: Run) -> None:
    default = OldLog(log.path, "0.27")
    default.long_talk()
    other = OldLog(tmp_path / "other.db", "0.20").long_talk()
    before = digest(log.path)

    result = run("compact", "-c", "-m", "extractive", "-d", str(tmp_path / "other.db"))

    assert result.exit_code == 0
    assert digest(log.path) == before
    db = sqlite_utils.Database(tmp_path / "other.db")
    assert next(iter(db["compactions"].rows))["source_conversation_id"] == other
    assert LogStore(db).verify() == []
