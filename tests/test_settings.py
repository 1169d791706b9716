"""What a user stores, and that it is never lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import Log
from scripted import Plugin

import llm_compact
from llm_compact.errors import CompactionError, SettingsError
from llm_compact.settings import (
    Settings,
    clear_setting,
    read_settings,
    remember_window,
    settings_list,
    store_setting,
)
from llm_compact.tokens import Size
from llm_compact.windows import context_window

Run = Callable[..., Result]

ALL = {
    "auto-threshold": "70%",
    "model": "extractive",
    "keep": "4x",
    "max-summary": "1k",
    "reuse-cache": "on",
    "window.ollama/llama3.2:latest": "32k",
}
BROKEN = ["", "{", "[]", "null", '"x"', "\x00", "[" * 100_000]


@pytest.fixture
def file(user_path: Path) -> Path:
    user_path.mkdir()
    return user_path / "compact.json"


def python(code: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stderr=subprocess.PIPE)


def test_without_a_file_there_are_no_settings(user_path: Path) -> None:
    assert read_settings(user_path / "nowhere") == Settings()
    assert settings_list(user_path / "nowhere") == []
    assert not (user_path / "nowhere").exists()


def test_what_was_stored_is_read_typed_and_listed_as_written(user_path: Path) -> None:
    for name, value in ALL.items():
        store_setting(name, value)

    assert settings_list() == list(ALL.items())
    assert read_settings() == Settings(
        auto_threshold=Size(70, "%"),
        model="extractive",
        keep=Size(4, "exchanges"),
        max_summary=Size(1_000, "tokens"),
        reuse_cache=True,
        windows={"ollama/llama3.2:latest": 32_000},
    )


def test_off_is_no_threshold_and_still_listed() -> None:
    store_setting("auto-threshold", "off")

    assert read_settings().auto_threshold is None
    assert settings_list() == [("auto-threshold", "off")]


def test_a_file_that_was_edited_by_hand_is_understood(file: Path) -> None:
    text = json.dumps({"auto-threshold": 100_000, "keep": 2, "window.chatty": 512})
    file.write_text(text, encoding="utf-8-sig")

    assert read_settings() == Settings(
        auto_threshold=Size(100_000, "tokens"),
        keep=Size(2, "exchanges"),
        windows={"chatty": 512},
    )
    assert settings_list() == [
        ("auto-threshold", "100000"),
        ("keep", "2"),
        ("window.chatty", "512"),
    ]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_switch_may_be_what_json_calls_it(is_on: bool, file: Path) -> None:
    file.write_text(json.dumps({"reuse-cache": is_on}), "utf-8")

    assert read_settings().reuse_cache is is_on
    assert settings_list() == [("reuse-cache", json.dumps(is_on))]


def test_what_is_unknown_in_the_file_stays_there(file: Path) -> None:
    file.write_text('{"of the future": [1, {"a": "\\ud800"}], "keep": "2x"}')

    store_setting("keep", "4x")
    store_setting("max-summary", "1k")
    clear_setting("keep")

    assert json.loads(file.read_text()) == {
        "of the future": [1, {"a": "\ud800"}],
        "max-summary": "1k",
    }
    assert settings_list() == [("max-summary", "1k")]


@pytest.mark.parametrize(
    "name, value, told",
    [
        ("auto-threshold", "150%", "auto-threshold: '150%' is more than the context window"),
        ("keep", "some", "keep: 'some' is not a size"),
        ("max-summary", "2x", "max-summary: '2x' is no length of a summary. Use 1k"),
        ("window.chatty", "50%", "window.chatty: '50%' is no number of tokens. Use 32k"),
        ("reuse-cache", "yes", "reuse-cache: 'yes' is neither on nor off"),
        ("model", "unheard-of", "model: Unknown model: unheard-of. See llm models"),
        ("model", "  ", "model: it is empty"),
        ("template", "nowhere", "template: Template nowhere: Invalid template: nowhere"),
        ("template", "  ", "template: it is empty"),
        ("window.", "32k", "There is no setting 'window.'. Use auto-threshold, model, template"),
        ("learned.chatty", "32k", "There is no setting 'learned.chatty'"),
        ("auto_threshold", "70%", "There is no setting 'auto_threshold'"),
    ],
)
def test_what_is_no_setting_is_refused_and_the_file_stays(
    name: str, value: str, told: str, run: Run, models: Plugin, file: Path
) -> None:
    file.write_text('{"keep": "2x"}')

    result = run("compact", "settings", "set", name, value)

    assert result.exit_code == 1
    assert told in result.stderr and len(result.stderr.splitlines()) == 1
    assert file.read_text() == '{"keep": "2x"}'


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_named_and_never_overwritten(broken: str, file: Path) -> None:
    file.write_text(broken)

    for act in (
        read_settings,
        settings_list,
        lambda: store_setting("keep", "2x"),
        lambda: clear_setting("keep"),
        lambda: remember_window("chatty", 512),
    ):
        with pytest.raises(SettingsError, match=r"compact\.json is no.*Correct it, or delete it"):
            act()
    assert file.read_text() == broken


def test_bytes_that_are_no_text_are_a_broken_file(file: Path) -> None:
    file.write_bytes(b'{"keep": "\xff"}')

    with pytest.raises(SettingsError, match=r"compact\.json is not JSON"):
        read_settings()


def test_a_file_that_can_not_be_read_is_named(file: Path) -> None:
    file.mkdir()

    with pytest.raises(CompactionError, match=r"compact\.json can't be read"):
        read_settings()


@pytest.mark.parametrize(
    "name, value",
    [
        ("auto-threshold", "50"),
        ("auto-threshold", None),
        ("keep", 0),
        ("max-summary", ["1k"]),
        ("model", ""),
        ("window.chatty", True),
        ("window.chatty", 1.5),
        ("window.chatty", "2x"),
        ("learned.chatty", -1),
    ],
)
def test_a_value_that_is_none_is_told_shown_and_can_be_cleared(
    name: str, value: Any, file: Path
) -> None:
    file.write_text(json.dumps({"keep": "4x", name: value}))
    to_clear = name.replace("learned", "window")

    with pytest.raises(SettingsError) as told:
        read_settings()
    assert f"compact.json: {name}: " in str(told.value)
    assert str(told.value).endswith(f"llm compact settings clear {to_clear}")
    assert name in dict(settings_list())
    assert clear_setting(to_clear)
    read_settings()


def test_a_window_is_stored_under_the_id_of_the_model(models: Plugin) -> None:
    assert store_setting("window.chat", "512") == "window.chatty"
    assert store_setting("window.not/installed.yet", "1k") == "window.not/installed.yet"

    assert read_settings().windows == {"chatty": 512, "not/installed.yet": 1_000}
    assert clear_setting("window.chat")
    assert read_settings().windows == {"not/installed.yet": 1_000}


def test_a_model_is_stored_as_it_was_given(models: Plugin) -> None:
    store_setting("model", "sum")

    assert read_settings().model == "sum"


def test_what_was_learned_counts_where_the_user_stored_nothing_and_is_cleared_with_it() -> None:
    remember_window("chatty", 512)
    assert context_window("chatty") == 512
    store_setting("window.chatty", "400")
    remember_window("chatty", 600)
    assert context_window("chatty") == 400

    assert clear_setting("window.chatty")

    assert settings_list() == []
    assert not clear_setting("window.chatty")


def test_no_window_is_learned_from_an_error_without_a_number() -> None:
    remember_window("chatty", 0)

    assert settings_list() == []


def test_a_link_stays_a_link_and_the_mode_is_kept(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "compact.json"
    target.parent.mkdir()
    target.write_text("{}")
    target.chmod(0o640)
    file.symlink_to(target)

    store_setting("keep", "4x")

    assert file.is_symlink()
    assert json.loads(target.read_text()) == {"keep": "4x"}
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_file_that_is_not_there_yet_is_written_through(
    file: Path, tmp_path: Path
) -> None:
    file.symlink_to(tmp_path / "new.json")

    store_setting("keep", "4x")

    assert file.is_symlink()
    assert json.loads((tmp_path / "new.json").read_text()) == {"keep": "4x"}


def test_a_directory_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match=r"compact\.json can't be written"):
        store_setting("keep", "4x", tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_file_that_is_write_protected_stays(file: Path) -> None:
    file.write_text("{}")
    file.chmod(0o400)

    with pytest.raises(SettingsError, match="it is write-protected"):
        store_setting("keep", "4x")
    assert file.read_text() == "{}"


def test_a_full_disk_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_setting("keep", "4x")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match=r"No space left on device\. Nothing was changed"):
        store_setting("keep", "2x")
    assert settings_list() == [("keep", "4x")]
    assert [path.name for path in file.parent.iterdir() if "tmp" in path.name] == []


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_a_kill_between_write_and_replace_leaves_the_old_file_and_a_free_lock(file: Path) -> None:
    store_setting("keep", "4x")
    old = file.read_bytes()

    killed = python(
        "import os, signal; os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL); "
        "from llm_compact.settings import store_setting; store_setting('keep', '2x')"
    )

    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert file.read_bytes() == old
    store_setting("max-summary", "1k")
    assert settings_list() == [("keep", "4x"), ("max-summary", "1k")]


def test_ten_processes_set_ten_settings_at_once_and_all_survive(
    user_path: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, time, pathlib; from llm_compact.settings import store_setting\n"
        "import llm; llm.get_model_aliases()\n"
        "(pathlib.Path(sys.argv[2]) / sys.argv[1]).touch()\n"
        "while len(list(pathlib.Path(sys.argv[2]).iterdir())) < 10: time.sleep(0.001)\n"
        "store_setting('window.' + sys.argv[1], '32k')"
    )
    ready = tmp_path / "ready"
    ready.mkdir()

    writers = [python(code, f"model-{n}", str(ready)) for n in range(10)]

    assert [writer.communicate()[1] for writer in writers] == [b""] * 10
    assert sorted(read_settings().windows) == sorted(f"model-{n}" for n in range(10))


def test_importing_llm_does_not_import_the_settings_and_reading_none_imports_no_counting(
    user_path: Path,
) -> None:
    code = (
        "import sys, llm.cli, llm_compact\n"
        "assert 'llm_compact.settings' not in sys.modules\n"
        "from llm_compact.settings import read_settings; read_settings()\n"
        "assert not {'sqlite3', 'llm_compact.tokens'} & (set(sys.modules) - before)"
    )
    code = code.replace("from llm", "before = set(sys.modules)\nfrom llm", 1)

    reader = python(code)

    assert reader.communicate()[1] == b""


def test_the_commands_tell_what_they_did(models: Plugin, run: Run) -> None:
    assert run("compact", "settings").stderr == "No settings stored.\n"
    assert run("compact", "settings", "list", "--json").stdout == "{}\n"

    assert run("compact", "settings", "set", "window.chat", "2k").stderr == "Set window.chatty=2k\n"
    assert run("compact", "settings", "set", "model", "sum").stderr == "Set model=sum\n"
    remember_window("summer", 512)

    listed = run("compact", "settings", "list")
    assert listed.stdout == "model: sum\nwindow.chatty: 2k\nwindow.summer: 512 (learned)\n"
    assert json.loads(run("compact", "settings", "--json").stdout) == {
        "model": "sum",
        "window.chatty": "2k",
        "learned.summer": "512",
    }

    assert run("compact", "settings", "clear", "model").stderr == "Cleared model\n"
    again = run("compact", "settings", "clear", "model")
    assert (again.exit_code, again.stderr) == (0, "model is not set\n")


@pytest.mark.parametrize("command", ["list", "set keep 2x", "clear keep"])
def test_the_commands_tell_a_broken_file(command: str, file: Path, run: Run) -> None:
    file.write_text("{")

    result = run("compact", "settings", *command.split())

    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {file} is not JSON")


def test_compact_does_as_the_settings_say(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    store_setting("model", "sum")
    store_setting("keep", "3x")
    store_setting("max-summary", "90%")
    models.summer.replies = ["## Goal\nKnow the tides."]

    result = run("compact", "-c")

    assert result.exit_code == 0, result.output
    row = next(log.db["compactions"].rows)
    assert (row["summarizer"], row["exchanges_kept"]) == ("summer", 3)


def test_a_stored_length_is_a_contract(long_talk: str, log: Log, run: Run) -> None:
    store_setting("max-summary", "5")
    before = log.rows()

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 1
    assert log.rows() == before


def test_options_beat_the_environment_and_the_environment_beats_settings(
    long_talk: str, models: Plugin, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def summarizer(*args: str) -> Any:
        return json.loads(run("compact", "-c", "--dry-run", "--json", *args).stdout)["summarizer"]

    assert summarizer() == "chatty"
    store_setting("model", "extractive")
    assert summarizer() == "extractive"
    monkeypatch.setenv("LLM_COMPACT_MODEL", "summer")
    assert summarizer() == "summer"
    assert summarizer("-m", "keyed") == "keyed"


def test_an_option_beats_a_stored_size(long_talk: str, run: Run) -> None:
    store_setting("keep", "3x")

    plan = run("compact", "-c", "--dry-run", "--json", "--keep", "1x")

    assert json.loads(plan.stdout)["exchanges_kept"] == 1


def test_the_model_of_a_template_beats_the_stored_one(
    long_talk: str, models: Plugin, run: Run
) -> None:
    run("--system", "Write the minutes", "-m", "summer", "--save", "minutes")
    store_setting("model", "keyed")

    plan = run("compact", "-c", "--dry-run", "--json", "-t", "minutes")

    assert json.loads(plan.stdout)["summarizer"] == "summer"


def test_compact_refuses_broken_settings_and_writes_nothing(
    long_talk: str, log: Log, run: Run, user_path: Path
) -> None:
    (user_path / "compact.json").write_text("{")
    before = log.rows()

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 1
    assert "compact.json is not JSON" in result.stderr
    assert log.rows() == before


def test_from_python_the_caller_says_what_is_kept(long_talk: str) -> None:
    store_setting("keep", "3x")

    assert llm_compact.compact(model="extractive").exchanges_kept == 2


def test_a_broken_file_stops_a_prompt_that_would_go_without_its_settings(
    models: Plugin, log: Log, run: Run, user_path: Path
) -> None:
    user_path.mkdir()
    (user_path / "compact.json").write_text("{")
    models.chatty.replies = ["High water at 06:15"]

    result = run("-m", "chatty", "When?")

    assert result.exit_code == 1
    assert "compact.json is not JSON" in result.output
    assert models.chatty.sent == []
