"""llm in processes of its own, and what its model was sent there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

OBSERVED = Path(__file__).with_name("observed.py")

Request = list[dict[str, str]]


@dataclass
class Done:
    """A process that has ended, and the requests that the model was sent by it."""

    stdout: str
    stderr: str
    returncode: int
    sent: list[Request]


Llm = Callable[..., Done]


def run_llm(user_path: Path, *args: str, said: Sequence[str] = ()) -> Done:
    """Run llm in a process of its own. `said` is typed into it, a line each."""
    record = user_path / "sent.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("")
    environment = {**os.environ, "LLM_USER_PATH": str(user_path)}
    for name in ("LLM_COMPACT_MODEL", "LLM_MODEL"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(OBSERVED), str(record), *args],
        env=environment,
        input="".join(f"{line}\n" for line in said),
        capture_output=True,
        text=True,
        timeout=600,
    )
    sent = [json.loads(line) for line in record.read_text().splitlines()]
    return Done(done.stdout, done.stderr, done.returncode, sent)


def texts(requests: Sequence[Request]) -> str:
    return "\n".join(message["content"] for request in requests for message in request)
