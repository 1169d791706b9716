"""What somebody wants to be done about conversations that grow, and who is told of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .tokens import Size, parse_keep, parse_length, parse_threshold, parse_tokens

if TYPE_CHECKING:
    from .plan import Plan
    from .source import Source
    from .store import Draft, Stored

TIMEOUT = 120.0
"Seconds that a summarizer may take for each call that a summary needs."


@dataclass(frozen=True)
class Policy:
    """What somebody wants to be done about conversations that grow."""

    threshold: Size | None = None
    "A request above it is compacted first. None: never."
    is_required: bool = True
    "Whether a threshold that can't be computed is an error. Else it is told once."
    summarizer: str | None = None
    "A model, or `extractive`. None: the conversation's own model."
    template: str | None = None
    "The llm template that a model is asked with. Its own model counts where none is named."
    keep: Size | None = None
    max_summary: Size | None = None
    reuse_cache: bool = False
    "Whether a summary by the conversation's own model is written from what it was sent before."
    window: int | None = None
    "Context window of the conversation's model in tokens."
    log: Path | None = None
    "The log that the conversations are in."
    is_stored: bool = False
    "Whether compactions are written there."
    timeout: float = TIMEOUT
    is_chat: bool = False
    "Whether it is about `llm chat`, with a person who types commands and reads hints."
    is_single: bool = False
    "Whether it is about one conversation, the first that comes by."


class Voice(Protocol):
    """Is told what happens, for people or for a program's log."""

    def working(self, plan: Plan, summarizer: str) -> None:
        """A summary is about to be written."""

    def compacted(self, source: Source, draft: Draft, stored: Stored | None) -> None:
        """The conversation is shorter now. `stored` is where it is written, if it is."""

    def moved(self, conversation_id: str, newest: str) -> None:
        """Another process has compacted the conversation, which goes on in `newest`."""

    def warn(self, text: str) -> None:
        """Something did not work, or can't."""

    def left(self, share: float) -> None:
        """So much of the threshold is left (0 to 1)."""


@contextmanager
def auto(
    threshold: str | int,
    *,
    model: str | None = None,
    template: str | None = None,
    keep: str | int | None = None,
    max_summary: str | int | None = None,
    window: str | int | None = None,
    database: str | Path | None = None,
    timeout: float = TIMEOUT,
    reuse_cache: bool = False,
) -> Iterator[None]:
    """Compact the conversations in this block by themselves, sync and async ones.

    `threshold` is a size such as "70%" (of the model's context window), "100k" (tokens), "20m"
    (messages) or "10x" (exchanges); a number is tokens. A request above it is compacted before it
    is sent. `model` writes the summaries, by default the conversation's own, or "extractive" for
    none; `template` is the llm template that it is asked with. `keep`, `max_summary` and `window`
    (that of the conversation's model) are sizes as for `compact()`, `timeout` is in seconds for
    each call of the summarizer. With `reuse_cache` the conversation's own model is sent the
    conversation as before and not a transcript; another model is sent a transcript all the same.

    With a `database`, each compaction is written there as a conversation of its own, which
    `conversation.id` moves to. Without it, only the chain of messages in memory gets shorter.
    What happens is logged by the logger `llm_compact`.

    Only models of llm's registry are covered. Raises `ValueError` for text that is no size; the
    first prompt raises a `CompactionError` if a percentage can't be counted.
    """
    from . import hook
    from .automatic import Session

    policy = Policy(
        threshold=parse_threshold(str(threshold)),
        summarizer=model,
        template=template,
        keep=parse_keep(str(keep)) if keep else None,
        max_summary=parse_length(str(max_summary)) if max_summary else None,
        window=parse_tokens(str(window)) if window else None,
        log=Path(database) if database else None,
        is_stored=database is not None,
        timeout=float(timeout),
        reuse_cache=reuse_cache,
    )
    with hook.active(Session(policy, Logged())):
        yield


class Logged:
    """Tells a program's log."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("llm_compact")

    def working(self, plan: Plan, summarizer: str) -> None:
        self._logger.debug("Compacting %d tokens with %s", plan.tokens_before, summarizer)

    def compacted(self, source: Source, draft: Draft, stored: Stored | None) -> None:
        record = draft.record
        self._logger.info(
            "Compacted %d -> %d tokens with %s, conversation %s is now %s",
            record.tokens_before,
            record.tokens_after,
            record.summarizer,
            source.id,
            stored.conversation_id if stored else source.id,
        )

    def moved(self, conversation_id: str, newest: str) -> None:
        self._logger.info(
            "%s was compacted by another process, going on in %s", conversation_id, newest
        )

    def warn(self, text: str) -> None:
        self._logger.warning("%s", text)

    def left(self, share: float) -> None:
        """A program asks for no hints."""
