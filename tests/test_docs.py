"""The README says what the program does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
from llm.cli import cli

README = Path(__file__).parents[1] / "README.md"


def test_the_help_in_the_readme_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", str(README)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\nRun make docs"


def test_every_option_is_in_the_readme() -> None:
    group = cli.commands["compact"]
    assert isinstance(group, click.Group)
    text = README.read_text("utf-8")

    for command in group.commands.values():
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("--"))
