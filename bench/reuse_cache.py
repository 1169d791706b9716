"""What `--reuse-cache` sends and costs, compared with a transcript, on real conversations.

Each conversation is compacted as it stands at its end. Nothing is asked of a provider: what would
be sent is counted, all that was sent before is taken for cached, and the answer, which costs the
same in both ways, is left out. The corpus is not part of the project: name it with `--corpus` or
LLM_COMPACT_CORPUS. Run it as `python bench/reuse_cache.py`, best where bpe-openai is installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import llm
from fidelity import CORPUS, Line, messages_of, read
from llm.parts import Message, TextPart

from llm_compact.errors import NothingToCompact, SummarizerError
from llm_compact.plan import Wishes, plan_compaction
from llm_compact.prefix import Prefix
from llm_compact.source import Source
from llm_compact.summarizers.model import ModelSummarizer
from llm_compact.summary import Watch
from llm_compact.tokens import message_tokens
from llm_compact.vocabulary import counter

LEAST_CACHED = 1_024
"Tokens. OpenAI, Anthropic and Google keep nothing shorter in their caches."
PRICES = (0.1, 0.25, 0.5, 1.0)
"What a cached token costs of one that is not: Anthropic, Google and OpenAI; the last is no cache."


@dataclass(frozen=True)
class Sizes:
    """The tokens that a summary takes as input."""

    transcript: int
    conversation: int
    "With the request behind it."
    sent_before: int
    "What of that the conversation's model was sent before."

    def share(self, price: float) -> float:
        """What the conversation costs of what the transcript costs."""
        cached = self.sent_before if self.sent_before >= LEAST_CACHED else 0
        return (self.conversation - cached + price * cached) / self.transcript


class Recording(llm.Model):
    """Keeps what it is sent and answers nothing, so that it is sent a transcript after all."""

    model_id = "recording"

    def __init__(self) -> None:
        self.sent: list[list[Message]] = []

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str]:
        self.sent.append(prompt.messages)
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("LLM_COMPACT_CORPUS") or CORPUS)
    parser.add_argument("--corpus", type=Path, default=default, help="JSON lines")
    corpus = parser.parse_args().corpus
    if not corpus.exists():
        sys.exit(f"No corpus at {corpus}. Name one with --corpus or LLM_COMPACT_CORPUS")
    measured: dict[str, list[Sizes]] = defaultdict(list)
    for line in read(corpus):
        sizes = sizes_of(line)
        if sizes:
            measured[f"{line['kind']}s" if line["kind"] == "chat" else "agent runs"].append(sizes)
    print(f"Tokens counted with {counter().name}; a cached one at this part of the price.\n")
    names = ("n", "transcript", "conversation", "cached", *(f"{price:.0%}" for price in PRICES))
    print(f"{'':12}" + "".join(f"{name:>14}" for name in names))
    for name, group in [*measured.items(), ("all", [s for g in measured.values() for s in g])]:
        show(name, group)


def show(name: str, group: Sequence[Sizes]) -> None:
    """What it costs in all, and for how many it is cheaper than a transcript."""
    transcripts = sum(sizes.transcript for sizes in group)
    conversations = sum(sizes.conversation for sizes in group)
    cached = sum(sizes.sent_before for sizes in group)
    print(f"{name:12}{len(group):14,}{transcripts:14,}{conversations:14,}{cached:14,}", end="")
    for price in PRICES:
        cost = sum(sizes.share(price) * sizes.transcript for sizes in group) / transcripts
        cheaper = sum(sizes.share(price) < 1 for sizes in group)
        print(f"{f'{cost:.0%} ({cheaper})':>14}", end="")
    print()


def sizes_of(line: Line) -> Sizes | None:
    """The tokens for a summary of a conversation's head, None where there is nothing to do."""
    system = [Message("system", [TextPart(line["system"])])] if line["system"] else []
    messages = messages_of(line)
    source = Source(
        id=line["id"],
        name=None,
        model_id="recording",
        tip="",
        messages=(*system, *messages),
        originals=tuple(messages),
        fragments=(),
        compacted_as=None,
    )
    try:
        head = plan_compaction(source, Wishes()).head
    except NothingToCompact:
        return None
    model = Recording()
    try:
        ModelSummarizer(model, prefix=Prefix()).summarize(head, Watch())
    except SummarizerError:
        assert len(model.sent) == 2
    conversation, transcript = model.sent
    return Sizes(tokens_of(transcript), tokens_of(conversation), tokens_of(conversation[:-1]))


def tokens_of(messages: Iterable[Message]) -> int:
    return sum(map(message_tokens, messages))


if __name__ == "__main__":
    main()
