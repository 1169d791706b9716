"""llm as a process of its own, which writes down what its model is really sent.

Run as `python observed.py RECORD ARGUMENTS...`: each request is a line of JSON in the file RECORD.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llama_cpp import Llama
from llm.cli import cli

_answer = Llama.create_chat_completion


def observe(record: Path) -> None:
    def create_chat_completion(self: Llama, messages: list[Any], **arguments: Any) -> Any:
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(messages) + "\n")
        # The adapter has no options: it samples, and a small model may ramble until its window is
        # full. What is sent next must not depend on dice.
        return _answer(self, messages, **{"temperature": 0.0, "max_tokens": 64, **arguments})

    Llama.create_chat_completion = create_chat_completion


if __name__ == "__main__":
    observe(Path(sys.argv[1]))
    cli(sys.argv[2:], prog_name="llm")
