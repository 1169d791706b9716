"""The compaction without a summary: old tool output is shortened, and no model is called."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

from llm.parts import Message
from llm.utils import monotonic_ulid

from .chain import hashes_of
from .compaction import Trigger
from .conversation import history_of, requests
from .errors import NothingToCompact
from .placeholder import LARGE, PRUNE_TOOLS, Pruning, pruned
from .plan import Plan
from .schema import Record
from .store import PrunedDraft
from .tokens import message_tokens

VERSION = "1"
"Changes with what a placeholder says."


def draft_pruning(
    plan: Plan, *, trigger: Trigger = "manual", is_logged: bool = True
) -> PrunedDraft:
    """Shorten the large tool results in the head of a plan. Nothing is written yet.

    `is_logged` says whether the originals will be in the log. Raises `NothingToCompact` where
    there is nothing to shorten.
    """
    started, date = time.monotonic(), datetime.now(timezone.utc)
    source, messages = plan.source, plan.source.messages
    body = history_of(messages).body
    turn_id = str(monotonic_ulid()).lower()
    hashes = hashes_of(messages)
    pruning = Pruning(plan.generation, turn_id, is_logged)
    until = len(messages) - len(body) + plan.cut.position
    chain = pruned(messages, hashes, until, pruning)
    changed = [index for index, message in enumerate(messages) if chain[index] is not message]
    shortened = [index for index in changed if messages[index].role == "tool"]
    if not shortened:
        raise NothingToCompact(
            f"Nothing to prune: no tool result of more than {LARGE} tokens is older than what is "
            "kept as it is. A lower --keep may reach some"
        )
    gain = sum(message_tokens(messages[i]) - message_tokens(chain[i]) for i in changed)
    record = Record(
        generation=plan.generation,
        trigger=trigger,
        summarizer=PRUNE_TOOLS,
        prompt_version=VERSION,
        instructions=None,
        messages_summarized=len(shortened),
        messages_kept=len(body) - len(shortened) - source.pending,
        exchanges_summarized=0,
        exchanges_kept=len(requests(body)) - source.pending,
        tokens_before=plan.tokens_before,
        tokens_after=max(0, plan.tokens_before - plan.calibration.tokens(gain)),
        summary_tokens=0,
        input_tokens=None,
        output_tokens=None,
        calls=0,
        duration_ms=int((time.monotonic() - started) * 1_000),
        datetime_utc=date.isoformat(),
        values_found=None,
        values_lost=None,
        lost=None,
    )
    return PrunedDraft(
        turn_id=turn_id,
        request="",
        summary="",
        tail=_behind_last_answer(chain),
        stands_for=0,
        record=record,
        messages=tuple(chain),
        originals={hashes[index]: messages[index] for index in shortened},
        pins=plan.pins,
    )


def _behind_last_answer(chain: Sequence[Message]) -> tuple[Message, ...]:
    last = max(index for index, message in enumerate(chain) if message.role == "assistant")
    return tuple(chain[last + 1 :])
