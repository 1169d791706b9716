"""What a compaction will do, decided before anything is called or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from llm.parts import Message

from .conversation import History, generation_of, history_of, requests, without_reasoning
from .cut import Allowance, Cut, choose_cut, cut_points
from .errors import COUNTABLE_KEEP, FEWER_PINS, ConversationError, NothingToCompact
from .language import language_of, words
from .pins import clean_pins, pinned_tokens, without_pins
from .placeholder import restored_from
from .sizes import message_sizes
from .store import Source, already_compacted
from .summary import Head
from .tokens import (
    MESSAGE_TOKENS,
    Calibration,
    Size,
    Unit,
    calibrate,
    count_text,
    message_tokens,
)
from .transcript import by_reference
from .windows import context_window

# Where a summary would have to be shorter than this (tokens), no model needs to be asked.
SHORTEST_SUMMARY = 2
# How long a summary should be, where nothing else is said: a tenth, within these limits (tokens).
LEAST_ROOM, MOST_ROOM = 300, 4_000
AIM, MOST_LEFT = 0.4, 0.6
"The shares of a limit that a compaction aims at, and that it leaves at most."
LEAST_SHARE = 10
"A tenth of a limit is there for a summary in any case."


@dataclass(frozen=True)
class Plan:
    """What a compaction will do, known before anything is called or written.

    Sizes in tokens, as the conversation's provider counts them; only `head.tokens` is plain,
    because the summarizer may have another provider.
    """

    source: Source
    head: Head
    tail: tuple[Message, ...]
    request: str
    "The fixed words of the user message in front of the summary."
    generation: int
    stands_for: int
    "How many original messages the summary replaces, over all generations."
    messages_summarized: int
    messages_kept: int
    exchanges_summarized: int
    exchanges_kept: int
    tokens_before: int
    tokens_summarized: int
    tokens_system: int
    "The system prompt, and what goes with every request: schemas of tools and the like."
    tokens_tail: int
    tokens_kept: int
    "Everything but the summary: these two, and the request in front of the summary."
    calibration: Calibration
    room: int
    "The plain count that the summary has to stay below."
    cut: Cut
    most: int | None
    "The plain count above which the summary is refused, pins included."
    longer: Callable[[], Plan]
    "The same with a tail that is one exchange or round longer. Raises `NothingToCompact`."
    pins: tuple[str, ...] = ()
    "Those of the head's that are new, to be stored with the compaction."


def plan_compaction(
    source: Source,
    *,
    keep: Size | None = None,
    max_summary: Size | None = None,
    focus: str | None = None,
    from_original: bool = False,
    pins: Sequence[str] = (),
    again: bool = False,
    limit: Size | None = None,
    window: int | None = None,
    calibration: Calibration | None = None,
    prune_tools: bool = False,
) -> Plan:
    """Decide what is summarized and what is kept.

    `limit` is the size (tokens, messages or exchanges) that the conversation has reached: then it
    is to become so small that the limit is far again, and `keep` yields to that. `window` is the
    context window of the conversation's model in tokens, where it is known already, and
    `calibration` how its provider counts. `pins` are pinned in addition to the source's. With
    `prune_tools` it is decided what is old as if no tool output had been shortened yet, so that it
    does not become more from one time to the next.

    Raises `NothingToCompact` when there is nothing to gain, `AlreadyCompacted` unless `again`,
    and `ConversationError` when the conversation can't be cut, when `keep` is a percentage and the
    model's context window is not known, when `from_original` and the log lacks originals, or when
    the pins alone are longer than a summary may be.
    """
    if source.compacted_as and not again:
        raise already_compacted(source.compacted_as)
    if keep and keep.unit == "%":
        window = window or _window(source.model_id, keep)
    history = history_of(source.messages)
    body, previous = history.body, history.summary
    if from_original:
        _check_originals(source, history)
    sizes = message_sizes(source.messages)
    calibration = calibration or calibrate(sizes, source.reported, source.known)
    system_sizes = sizes[: len(history.system)]
    replaced_sizes = sizes[len(history.system) : len(sizes) - len(body)]
    body_sizes = sizes[len(sizes) - len(body) :]
    originals = by_reference(source.originals, source.fragments)
    language = language_of(originals)
    generation = generation_of(source.messages) + 1
    request = words(language)["request"].replace("{n}", str(generation))
    request_tokens = MESSAGE_TOKENS + count_text(request)
    tokens = [calibration.tokens(size) for size in body_sizes]
    new_pins = tuple(pin for pin in clean_pins(pins) if pin not in source.pins)
    all_pins = (*source.pins, *new_pins)
    pinned = pinned_tokens(all_pins, language)
    allowance = None
    if limit:
        fixed = calibration.overhead + calibration.tokens(sum(system_sizes) + request_tokens)
        room = calibration.tokens(_room(sum(sizes), max_summary, limit, pinned))
        allowance = _allowance(body, tokens, limit, fixed + MESSAGE_TOKENS, room)
    whole = restored_from(body, source.originals)
    weights = [
        calibration.tokens(message_tokens(original))
        if prune_tools and original is not now
        else size
        for now, original, size in zip(body, whole, tokens, strict=True)
    ]
    is_anew = from_original and previous is not None
    cut = _cut(body, weights, keep, window or 0, allowance, may_keep_all=is_anew)
    summarized, kept = cut.head(body), cut.tail(body)
    tail = tuple(without_reasoning(kept))
    if is_anew:
        summarized = list(_replaced(source.originals, body, cut))
        head_tokens = sum(message_sizes(summarized))
    else:
        head_tokens = sum(replaced_sizes) + sum(cut.head(body_sizes))
    tail_tokens = sum(
        size if sent is message else message_tokens(sent)
        for message, sent, size in zip(kept, tail, cut.tail(body_sizes), strict=True)
    )
    kept_tokens = request_tokens + sum(system_sizes) + tail_tokens
    room = _room(head_tokens, max_summary, limit, pinned)
    most = room if max_summary else None
    if limit and limit.unit == "tokens" and not max_summary:
        left = calibration.plain(int(limit.value * MOST_LEFT) - calibration.overhead)
        left -= kept_tokens + MESSAGE_TOKENS
        # Where what has to stay leaves no room below the limit, the summary is not to blame.
        room = min(room, max(left, limit.value // LEAST_SHARE + pinned))
        most = max(room, left)
    allowed = _room_of_pins(room, max_summary, limit)
    if pinned and allowed is not None and allowed - pinned < SHORTEST_SUMMARY:
        raise _too_many_pins(pinned, allowed)
    head = Head(
        messages=by_reference(whole[: cut.position], source.fragments),
        previous=without_pins(previous.text) if previous else None,
        originals=_replaced(originals, body, cut),
        tokens=head_tokens,
        language=language,
        room=room - pinned,
        most=None if most is None else most - pinned,
        focus=focus,
        generation=generation,
        pins=all_pins,
    )
    if is_anew:
        head = replace(head, messages=head.originals, previous=None)
    if head_tokens <= request_tokens + MESSAGE_TOKENS + SHORTEST_SUMMARY:
        gain = calibration.tokens(head_tokens)
        raise NothingToCompact(f"Nothing to gain: only {gain:,} tokens could be summarized")
    tokens_system = calibration.overhead + calibration.tokens(sum(system_sizes))
    tokens_tail = calibration.tokens(tail_tokens)
    tokens_before = calibration.conversation(sizes)
    if is_anew:
        tokens_before = tokens_system + calibration.tokens(head_tokens) + tokens_tail
    return Plan(
        source=source,
        head=head,
        tail=tail,
        request=request,
        generation=generation,
        stands_for=len(head.originals),
        messages_summarized=len(summarized) + (0 if is_anew else len(replaced_sizes)),
        messages_kept=len(kept) - source.pending,
        exchanges_summarized=len(requests(summarized)),
        exchanges_kept=len(requests(kept)) - source.pending,
        tokens_before=tokens_before,
        # What the provider has counted, and we can't tell of which message, is in here.
        tokens_summarized=tokens_before - tokens_system - tokens_tail,
        tokens_system=tokens_system,
        tokens_tail=tokens_tail,
        tokens_kept=calibration.overhead + calibration.tokens(kept_tokens),
        calibration=calibration,
        room=sum(system_sizes)
        + head_tokens
        + sum(cut.tail(body_sizes))
        - kept_tokens
        - MESSAGE_TOKENS,
        cut=cut,
        most=most,
        longer=partial(
            plan_compaction,
            source,
            keep=Size(len(body) - cut.position + 1, "messages"),
            max_summary=max_summary,
            focus=focus,
            from_original=from_original,
            pins=pins,
            again=True,
            limit=limit,
            window=window,
            calibration=calibration,
        ),
        pins=new_pins,
    )


def _check_originals(source: Source, history: History) -> None:
    before = history.summary.marker.head if history.summary else 0
    if len(source.originals) < before + len(history.body):
        raise ConversationError(
            "This log does not have the original messages of all generations, so they can't be "
            "summarized anew. Leave out --from-original"
        )


def _cut(
    body: Sequence[Message],
    weights: Sequence[int],
    keep: Size | None,
    window: int,
    allowance: Allowance | None,
    *,
    may_keep_all: bool,
) -> Cut:
    """Where to cut. What was summarized before is summarized anew even where all the rest stays."""
    try:
        return choose_cut(body, weights, keep, window, allowance)
    except NothingToCompact:
        if not (may_keep_all and requests(body)[:1] == [0]):
            raise
        # As behind any request in front of a tail: its rounds may be far from it in the originals.
        return Cut(1, request=0)


def size_of(messages: Sequence[Message], unit: Unit) -> int:
    """How many messages or exchanges a conversation has, without its system prompt."""
    history = history_of(messages)
    if unit == "messages":
        return len(messages) - len(history.system)
    return len(requests(history.body))


def fixed_size(messages: Sequence[Message], unit: Unit, calibration: Calibration) -> int:
    """What of a conversation no compaction can summarize: system prompt, newest request, round."""
    history = history_of(messages)
    points = cut_points(history.body)
    tail = points[-1].tail(history.body) if points else history.body
    fixed = [*history.system, *tail]
    if unit != "tokens":
        return size_of(fixed, unit)
    return calibration.overhead + calibration.tokens(sum(map(message_tokens, fixed)))


def _allowance(
    body: Sequence[Message], tokens: Sequence[int], limit: Size, fixed: int, room: int
) -> Allowance:
    """What the tail may weigh below a limit, beside the `fixed` tokens and a summary's room."""
    aim, most = int(limit.value * AIM), int(limit.value * MOST_LEFT) - 1
    if limit.unit == "tokens":
        # Most summaries take about half of their room, and some all of it.
        return Allowance(tokens, aim - fixed - room // 2, most - fixed - room)
    if limit.unit == "messages":
        return Allowance([1] * len(body), aim - 2, most - 2)
    starts = set(requests(body))
    return Allowance([int(index in starts) for index in range(len(body))], aim, most)


def _replaced(
    originals: Sequence[Message], body: Sequence[Message], cut: Cut
) -> tuple[Message, ...]:
    """What the summary stands for, as it was before any compaction."""
    # The originals end with the same messages as the body, whatever came before: the request that
    # stands in front of a tail since the compaction before may be far from its rounds there.
    position = len(originals) - (len(body) - cut.position)
    request = None if cut.request is None else requests(originals[:position])[-1]
    return tuple(Cut(position, request).head(originals))


def _room(head_tokens: int, max_summary: Size | None, limit: Size | None, pinned: int = 0) -> int:
    """How long a summary should be, with its pins: they are within what a user allows."""
    if max_summary and max_summary.unit == "%":
        return max(1, head_tokens * max_summary.value // 100)
    if max_summary:
        return max_summary.value
    room = min(MOST_ROOM, max(LEAST_ROOM, head_tokens // 10))
    if limit and limit.unit == "tokens":
        room = min(room, limit.value // 4)
    return room + pinned


def _room_of_pins(room: int, max_summary: Size | None, limit: Size | None) -> int | None:
    """What pins may take: more than a limit aims at would reach it again and again."""
    if max_summary:
        return room
    return int(limit.value * AIM) if limit and limit.unit == "tokens" else None


def _too_many_pins(pinned: int, allowed: int) -> ConversationError:
    return ConversationError(
        f"The pins alone take {pinned:,} tokens, and {allowed:,} are allowed. {FEWER_PINS}"
    )


def _window(model_id: str, keep: Size) -> int:
    window = context_window(model_id)
    if window is None:
        raise ConversationError(
            f"No context window known for {model_id!r}, so {keep} can't be kept. "
            f"{COUNTABLE_KEEP}, or say the window: llm compact settings set window.{model_id} 32k"
        )
    return window
