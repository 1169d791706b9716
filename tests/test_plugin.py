"""What the plugin costs, and that it leaves llm alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import Log
from llm.plugins import pm
from scripted import Plugin

import llm_compact

Run = Callable[..., Result]


def test_the_plugin_is_registered() -> None:
    plugins = {plugin["name"]: plugin for plugin in llm.get_plugins()}

    assert sorted(plugins["llm-compact"]["hooks"]) == ["register_commands", "register_models"]


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    code = (
        "import sys, llm.cli; import llm_compact; "
        "print([m for m in sys.modules if m.startswith('llm_compact')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    light = {"llm_compact", "llm_compact.cli", "llm_compact.options", "llm_compact.hook"}
    assert set(json.loads(done.stdout.replace("'", '"'))) <= light


def test_public_names_are_there() -> None:
    assert callable(llm_compact.compact)
    assert issubclass(llm_compact.NothingToCompact, llm_compact.CompactionError)
    with pytest.raises(AttributeError):
        llm_compact.nothing  # noqa: B018


def test_help_of_the_group_and_of_the_command(run: Run) -> None:
    group = run("compact", "--help")
    command = run("compact", "run", "--help")

    assert group.exit_code == command.exit_code == 0
    assert "run*" in group.stdout
    for option in ("--cid", "--model", "--keep", "--focus", "--dry-run", "--again", "--json"):
        assert option in command.stdout


def without_times(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    volatile = {"id", "thread_id", "turn_id", "datetime_utc", "duration_ms", "applied_at"}
    return {
        table: [{k: v for k, v in row.items() if k not in volatile} for row in table_rows]
        for table, table_rows in rows.items()
    }


def test_llm_logs_and_says_the_same_with_and_without_the_plugin(
    models: Plugin, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(directory: str) -> tuple[list[str], dict[str, list[dict[str, Any]]]]:
        monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / directory))
        models.chatty.sent.clear()
        outputs = [
            run("-m", "chatty", "-s", "Be brief", "Hello", "-u").output,
            run("-c", "Again").output,
            run("chat", "-c", input="More\n!compacted\nquit\n").output,
            run("-c", "Once more", "-n").output,
        ]
        return outputs, without_times(Log(tmp_path / directory / "logs.db").rows())

    with_plugin = session("with")
    plugin = pm.unregister(name="compact")
    try:
        without_plugin = session("without")
    finally:
        pm.register(plugin, name="compact")

    assert with_plugin == without_plugin
    assert "compactions" not in with_plugin[1]


def test_a_prompt_below_its_threshold_compiles_no_expressions_of_a_summary() -> None:
    code = (
        "import sys, llm_compact.automatic\n"
        "print([m for m in sys.modules if m.startswith('llm_compact.summarizers.')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "cues" not in done.stdout and "corrections" not in done.stdout
