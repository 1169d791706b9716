"""The demonstration."""

from __future__ import annotations

import os
from collections.abc import Callable

from click.testing import Result
from conftest import Log


def test_the_demo_compacts_the_sample_and_shows_what_is_sent(
    run: Callable[..., Result], log: Log
) -> None:
    user_path = os.environ["LLM_USER_PATH"]

    result = run("compact", "demo")

    assert result.exit_code == 0
    assert "60 exchanges" in result.stdout
    assert "$ llm compact -c -m extractive\n" in result.stdout
    assert "never touch the `main` branch" in result.stdout
    assert "I was sent 8 messages" in result.stdout
    assert "Compacted 13," in result.stderr
    # It leaves no trace in one's own llm.
    assert os.environ["LLM_USER_PATH"] == user_path
    assert not log.path.exists()
