"""What the hook costs a call of a model: without a policy, and with one that has nothing to do.

Run as `python bench/overhead.py`. Microseconds, the best of several runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from timeit import repeat
from typing import Any

import llm
from llm.parts import Message, TextPart

import llm_compact
from llm_compact.hook import wrap_execute

ANSWER = "High water in Esbjerg was at 06:15, with 1.4 m above chart datum. " * 10
TURNS = (10, 100, 1_000)


class Answering(llm.Model):
    model_id = "answering"

    def execute(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        yield ANSWER


def main() -> None:
    print("one call of `execute`, no policy:")
    for messages in (2, 200, 2_000):
        print(f"  {messages:>6,} messages: {added_by_the_hook(messages):6.1f} µs added")
    print("one turn of a conversation:")
    plain, checked = turns(nullcontext()), turns(llm_compact.auto("100000k", model="extractive"))
    for turn in TURNS:
        print(f"  turn {turn:>6,}: {plain[turn]:6.0f} µs, with a threshold {checked[turn]:6.0f} µs")


def added_by_the_hook(messages: int) -> float:
    """Microseconds for a chain of so many messages."""
    chain = [Message(role="user", parts=[TextPart(text=ANSWER)])] * messages
    plain, wrapped = Answering(), Answering()
    wrap_execute(wrapped)
    prompt = llm.Prompt(None, plain, messages=chain)

    def seconds(model: llm.Model) -> float:
        calls = 1_000
        arguments: dict[str, Any] = {"stream": False, "response": None, "conversation": None}
        return min(repeat(lambda: model.execute(prompt, **arguments), number=calls)) / calls

    return (seconds(wrapped) - seconds(plain)) * 1e6


def turns(policy: AbstractContextManager[None]) -> dict[int, float]:
    """Microseconds of some turns of a conversation that grows, each the best of five there."""
    model = Answering()
    wrap_execute(model)
    conversation = model.conversation()
    took: list[float] = []
    with policy:
        for turn in range(max(TURNS) + 1):
            started = time.perf_counter()
            conversation.prompt(f"And in port {turn}?").text()
            took.append(time.perf_counter() - started)
    return {turn: min(took[turn - 4 : turn + 1]) * 1e6 for turn in TURNS}


if __name__ == "__main__":
    main()
