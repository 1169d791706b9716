"""The README says what the program does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from llm.cli import cli

from llm_compact.options import added_options
from llm_compact.settings import NAMES

README = Path(__file__).parents[1] / "README.md"


def test_the_help_in_the_readme_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", str(README)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\nRun make docs"


def test_every_option_is_in_the_readme() -> None:
    text = README.read_text("utf-8")

    for command in commands_of(cli.commands["compact"]):
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("--"))


def test_every_option_that_is_added_to_llm_is_in_the_readme() -> None:
    text = README.read_text("utf-8")

    assert [option.opts[0] for option in added_options() if option.opts[0] not in text] == []


@pytest.mark.parametrize("name", [*NAMES, "window.MODEL"])
def test_every_setting_is_in_the_readme(name: str) -> None:
    assert f"| `{name}` |" in README.read_text("utf-8")


def commands_of(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from commands_of(below)
