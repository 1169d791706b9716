"""A conversation of 368k tokens for a summarizer with a small context window.

Tells how many calls it takes, whether each message reached the model, and the time without the
model's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import llm
from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart
from synthetic import Line, conversation

from llm_compact.summarizers.model import ModelSummarizer
from llm_compact.summary import Head, Watch
from llm_compact.tokens import count_text, message_tokens
from llm_compact.vocabulary import counter

MESSAGES = 1_532
WINDOWS = (512, 4_096, 128_000)
RECORD = "The parser was fixed, the tests pass, and the index is next. "


class Counting(llm.Model):
    """Remembers which messages it was sent, and refuses what exceeds its window."""

    model_id = "counting"

    def __init__(self, window: int) -> None:
        self.window = window
        self.calls = self.tokens = self.largest = 0
        self.seen: set[str] = set()
        self.seconds = 0.0

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str]:
        started = time.perf_counter()
        text = f"{prompt.system}\n{prompt.prompt}"
        size = count_text(text)
        if size > self.window:
            raise ValueError(f"Requested tokens ({size}) exceed context window of {self.window}")
        self.calls += 1
        self.tokens += size
        self.largest = max(self.largest, size)
        self.seen.update(word for word in text.split() if word.startswith("message-"))
        self.seconds += time.perf_counter() - started
        yield RECORD


def main() -> None:
    messages = [message_of(line, at) for at, line in enumerate(conversation(MESSAGES))]
    marks = {f"message-{at}" for at in range(len(messages))}
    tokens = sum(map(message_tokens, messages))
    print(f"{len(messages):,} messages, {tokens:,} tokens, counted with {counter().name}.\n")
    print("| window | calls | tokens sent | largest call | messages that arrived | seconds |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for window in WINDOWS:
        model = Counting(window)
        head = Head(messages, None, messages, tokens, "en", room=4_000)
        started = time.perf_counter()
        ModelSummarizer(model, window=window).summarize(head, Watch())
        seconds = time.perf_counter() - started - model.seconds
        print(
            f"| {window:,} | {model.calls:,} | {model.tokens:,} | {model.largest:,} "
            f"| {len(marks & model.seen):,} of {len(marks):,} | {seconds:.1f} |"
        )


def message_of(line: Line, at: int) -> Message:
    """The message, with a mark by which it is known again."""
    # The middle of long tool output is left out, and the transcript says how much of it.
    text = f"message-{at} {line.text}"
    if line.role == "tool":
        result = ToolResultPart(name=line.tool, output=text, tool_call_id=line.call)
        return Message(role="tool", parts=[result])
    parts: list[TextPart | ToolCallPart] = [TextPart(text=text)]
    if line.call:
        arguments = line.arguments
        parts.append(ToolCallPart(name=line.tool, arguments=arguments, tool_call_id=line.call))
    return Message(role=line.role, parts=parts)


if __name__ == "__main__":
    main()
