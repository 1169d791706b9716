"""A conversation that is going on in this process, and what a log does not know of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import llm
from llm.parts import Message

from .conversation import history_of, text_of
from .meter import Meter
from .placeholder import restored
from .prefix import tools_tokens
from .source import Source, stripped_fragment
from .store import Draft, PrunedDraft
from .tokens import count_text
from .turns import AnyConversation

NAME_LENGTH = 32
"Characters of a conversation's name, as llm cuts it."


@dataclass
class Ongoing:
    """What is known of a conversation in this process."""

    meter: Meter
    is_begun_here: bool = False
    "Whether the prompt in progress began it, with a compaction that was written."
    ceiling: int | None = None
    "Tokens that a provider has refused as too many."
    known: tuple[str, Sequence[Message], int] | None = None
    "The last compaction, the original messages at that time, and how many of them were kept."
    pruned: dict[str, Message] = field(default_factory=dict)
    "The messages whose tool output was shortened, as they were, by their hash."
    is_full: bool = False
    "Whether it was told that nothing can be made smaller."
    commands: list[llm.Prompt] = field(default_factory=list)
    "Commands since the last prompt: what was attached to them belongs to the next one."
    surplus: int | None = None
    "What a compaction left besides what has to stay, while that is above the limit together."

    def remember(self, source: Source, draft: Draft) -> None:
        """Keep what a compaction takes out of the conversation: there may be no log that has it."""
        if isinstance(draft, PrunedDraft):
            self.pruned.update(draft.originals)
        else:
            self.known = (draft.turn_id, source.originals, len(draft.tail))

    def originals_of(self, messages: Sequence[Message]) -> list[Message] | None:
        """The original messages of this conversation, if this process has compacted them."""
        history = history_of(messages)
        if self.known is None or history.summary is None:
            return None
        compaction, originals, kept = self.known
        if history.summary.marker.compaction != compaction:
            return None
        return [*originals, *restored(history.body[kept:], self.pruned.get)]


def overhead_of(prompt: llm.Prompt) -> int:
    """The plain count of what goes with each request and belongs to no message."""
    schema = count_text(json.dumps({"schema": prompt.schema}, default=str)) if prompt.schema else 0
    return tools_tokens(prompt.tools) + schema


def name_of(messages: Sequence[Message]) -> str | None:
    """What a conversation is called that nobody has logged yet: its first words, as llm does."""
    said = (" ".join(text_of(message).split()) for message in messages if message.role == "user")
    words = next((text for text in said if text), None)
    if words is None or len(words) <= NAME_LENGTH:
        return words
    return words[: NAME_LENGTH - 1] + "…"


def fragments_of(conversation: AnyConversation, prompt: llm.Prompt) -> list[str]:
    """The fragments of the prompts in this process. A tool loop has them on its first alone."""
    prompts = [*(response.prompt for response in conversation.responses), prompt]
    # As they are: llm's know where they came from, which a plain text does not.
    return list(
        dict.fromkeys(
            fragment
            for each in prompts
            for fragment in [
                *(each.fragments or []),
                *(
                    stripped_fragment(system, getattr(system, "source", None))
                    for system in each.system_fragments or []
                ),
            ]
        )
    )
