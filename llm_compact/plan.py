"""What a compaction will do, decided before anything is called or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from llm.parts import Message

from .check import storable
from .conversation import History, generation_of, history_of, requests, without_reasoning
from .cut import Allowance, Cut, choose_cut, cut_points
from .errors import (
    COUNTABLE_KEEP,
    FEWER_PINS,
    AlreadyCompacted,
    ConversationError,
    NothingToCompact,
)
from .language import language_of, words
from .pins import clean_pins, pinned_tokens, without_pins
from .placeholder import restored_from
from .sizes import message_sizes
from .source import Source
from .summary import Head, Sent
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


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a person asks of a compaction."""

    keep: Size | None = None
    "How much stays as it is."
    max_summary: Size | None = None
    "How long the summary may be."
    focus: str | None = None
    "What the summary should look after."
    from_original: bool = False
    "Whether it is made from the original messages of all generations."
    pins: Sequence[str] = ()
    "What is pinned in addition to the source's pins."
    again: bool = False
    "Whether a second compaction of the same point is meant."
    prune_tools: bool = False
    """Whether old tool output is shortened instead of a summary. What is old is then decided as if
    none had been shortened yet, so that it does not become more from one time to the next."""


@dataclass(frozen=True)
class Plan:
    """What a compaction will do, known before anything is called or written.

    Sizes in tokens, as the conversation's provider counts them; only `head.tokens` is plain,
    because the summarizer may have another provider.
    """

    source: Source
    wishes: Wishes
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
    wishes: Wishes,
    *,
    limit: Size | None = None,
    window: int | None = None,
    calibration: Calibration | None = None,
) -> Plan:
    """Decide what is summarized and what is kept.

    `limit` is the size (tokens, messages or exchanges) that the conversation has reached: then it
    is to become so small that the limit is far again, and `wishes.keep` yields to that. `window`
    is the context window of the conversation's model in tokens, where it is known already, and
    `calibration` how its provider counts.

    Raises `NothingToCompact` when there is nothing to gain, `AlreadyCompacted` unless `again`,
    and `ConversationError` when the conversation can't be cut, when `keep` is a percentage and the
    model's context window is not known, when `from_original` and the log lacks originals, or when
    the pins alone are longer than a summary may be.
    """
    if source.compacted_as and not wishes.again:
        raise AlreadyCompacted(source.compacted_as)
    if source.is_untouched and wishes == Wishes() and limit is None:
        raise NothingToCompact(
            "Nothing was said since this conversation was compacted. Use --keep to keep less, or "
            "--again for another summary"
        )
    if wishes.keep and wishes.keep.unit == "%":
        window = window or _window(source.model_id, wishes.keep)
    if wishes.from_original:
        _check_originals(source)
    sizes = message_sizes(source.messages)
    calibration = calibration or calibrate(sizes, source.reported, source.known)
    return _plan(_Basis(source, wishes, limit, window, calibration, sizes))


@dataclass(frozen=True)
class _Basis:
    """What is known before the cut. Sizes are plain tokens, each a message's."""

    source: Source
    wishes: Wishes
    limit: Size | None
    window: int | None
    calibration: Calibration
    sizes: Sequence[int]

    @cached_property
    def history(self) -> History:
        return history_of(self.source.messages)

    @property
    def is_anew(self) -> bool:
        """Whether all generations are summarized anew, and not only what the last one left."""
        return self.wishes.from_original and self.history.summary is not None

    @property
    def system_tokens(self) -> int:
        return sum(self.sizes[: len(self.history.system)])

    @property
    def replaced_sizes(self) -> Sequence[int]:
        """Those of the previous summary and the request in front of it."""
        return self.sizes[len(self.history.system) : len(self.sizes) - len(self.history.body)]

    @property
    def body_sizes(self) -> Sequence[int]:
        return self.sizes[len(self.sizes) - len(self.history.body) :]

    @cached_property
    def originals(self) -> tuple[Message, ...]:
        return by_reference(self.source.originals, self.source.fragments)

    @cached_property
    def unpruned(self) -> list[Message]:
        """The body with the original tool output."""
        return restored_from(self.history.body, self.source.originals)

    @cached_property
    def language(self) -> str:
        return language_of(self.originals)

    @cached_property
    def generation(self) -> int:
        return generation_of(self.source.messages) + 1

    @cached_property
    def request(self) -> str:
        return words(self.language)["request"].replace("{n}", str(self.generation))

    @cached_property
    def request_tokens(self) -> int:
        return MESSAGE_TOKENS + count_text(self.request)

    @cached_property
    def new_pins(self) -> tuple[str, ...]:
        wished = clean_pins(self.wishes.pins)
        return tuple(pin for pin in wished if pin not in self.source.pins)

    @property
    def pins(self) -> tuple[str, ...]:
        return (*self.source.pins, *self.new_pins)

    @cached_property
    def pinned(self) -> int:
        """The tokens that the pins take."""
        return pinned_tokens(self.pins, self.language)


def _plan(basis: _Basis) -> Plan:
    source, body, calibration = basis.source, basis.history.body, basis.calibration
    cut = _cut(basis)
    kept = cut.tail(body)
    tail = tuple(without_reasoning(kept))
    if basis.is_anew:
        summarized: Sequence[Message] = _replaced(source.originals, body, cut)
        messages_summarized, head_tokens = len(summarized), sum(message_sizes(summarized))
    else:
        summarized = cut.head(body)
        messages_summarized = len(basis.replaced_sizes) + len(summarized)
        head_tokens = sum(basis.replaced_sizes) + sum(cut.head(basis.body_sizes))
    tail_tokens = sum(
        size if sent is message else message_tokens(sent)
        for message, sent, size in zip(kept, tail, cut.tail(basis.body_sizes), strict=True)
    )
    kept_tokens = basis.request_tokens + basis.system_tokens + tail_tokens
    everything = basis.system_tokens + head_tokens + sum(cut.tail(basis.body_sizes))
    room, most = _bounds(basis, head_tokens, kept_tokens)
    head = _head(basis, cut, head_tokens, room, most)
    if head_tokens <= basis.request_tokens + MESSAGE_TOKENS + SHORTEST_SUMMARY:
        gain = calibration.tokens(head_tokens)
        raise NothingToCompact(f"Nothing to gain: only {gain:,} tokens could be summarized")
    tokens_system = calibration.overhead + calibration.tokens(basis.system_tokens)
    tokens_tail = calibration.tokens(tail_tokens)
    tokens_before = calibration.conversation(basis.sizes)
    if basis.is_anew:
        tokens_before = tokens_system + calibration.tokens(head_tokens) + tokens_tail
    return Plan(
        source=source,
        wishes=basis.wishes,
        head=head,
        tail=tail,
        request=basis.request,
        generation=basis.generation,
        stands_for=len(head.originals),
        messages_summarized=messages_summarized,
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
        room=everything - kept_tokens - MESSAGE_TOKENS,
        cut=cut,
        most=most,
        longer=partial(_longer, basis, cut),
        pins=basis.new_pins,
    )


def _longer(basis: _Basis, cut: Cut) -> Plan:
    keep = Size(len(basis.history.body) - cut.position + 1, "messages")
    return _plan(replace(basis, wishes=replace(basis.wishes, keep=keep)))


def _cut(basis: _Basis) -> Cut:
    body, calibration, limit = basis.history.body, basis.calibration, basis.limit
    tokens = [calibration.tokens(size) for size in basis.body_sizes]
    allowance = None
    if limit:
        fixed = calibration.overhead
        fixed += calibration.tokens(basis.system_tokens + basis.request_tokens)
        room = calibration.tokens(
            _room(sum(basis.sizes), basis.wishes.max_summary, limit, basis.pinned)
        )
        allowance = _allowance(body, tokens, limit, fixed + MESSAGE_TOKENS, room)
    weights = [
        calibration.tokens(message_tokens(original))
        if basis.wishes.prune_tools and original is not now
        else size
        for now, original, size in zip(body, basis.unpruned, tokens, strict=True)
    ]
    try:
        return choose_cut(body, weights, basis.wishes.keep, basis.window or 0, allowance)
    except NothingToCompact:
        if not (basis.is_anew and requests(body)[:1] == [0]):
            raise
        # What was summarized before is summarized anew even where all the rest stays. As behind any
        # request in front of a tail, its rounds may be far from it in the originals.
        return Cut(1, request=0)


def _bounds(basis: _Basis, head_tokens: int, kept_tokens: int) -> tuple[int, int | None]:
    """How long a summary should be, and above which length it is refused, with its pins."""
    max_summary, limit, pinned = basis.wishes.max_summary, basis.limit, basis.pinned
    room = _room(head_tokens, max_summary, limit, pinned)
    most = room if max_summary else None
    if limit and limit.unit == "tokens" and not max_summary:
        most_left = int(limit.value * MOST_LEFT) - basis.calibration.overhead
        left = basis.calibration.plain(most_left) - kept_tokens - MESSAGE_TOKENS
        # Where what has to stay leaves no room below the limit, the summary is not to blame.
        room = min(room, max(left, limit.value // LEAST_SHARE + pinned))
        most = max(room, left)
    allowed = _room_of_pins(room, max_summary, limit)
    if pinned and allowed is not None and allowed - pinned < SHORTEST_SUMMARY:
        raise _too_many_pins(pinned, allowed)
    return room, most


def _head(basis: _Basis, cut: Cut, tokens: int, room: int, most: int | None) -> Head:
    previous = basis.history.summary
    head = Head(
        messages=by_reference(basis.unpruned[: cut.position], basis.source.fragments),
        previous=without_pins(previous.text) if previous else None,
        originals=_replaced(basis.originals, basis.history.body, cut),
        tokens=tokens,
        language=basis.language,
        room=room - basis.pinned,
        most=None if most is None else most - basis.pinned,
        focus=basis.wishes.focus and storable(basis.wishes.focus),
        generation=basis.generation,
        pins=basis.pins,
        sent=None if basis.wishes.from_original else _sent(basis, cut),
    )
    return replace(head, messages=head.originals, previous=None) if basis.is_anew else head


def _sent(basis: _Basis, cut: Cut) -> Sent:
    end = len(basis.sizes) - len(basis.history.body) + cut.position
    tokens = basis.calibration.tokens(sum(basis.sizes[:end]))
    return Sent(basis.source.messages[:end], tokens)


def _check_originals(source: Source) -> None:
    history = history_of(source.messages)
    before = history.summary.marker.head if history.summary else 0
    if len(source.originals) < before + len(history.body):
        raise ConversationError(
            "This log does not have the original messages of all generations, so they can't be "
            "summarized anew. Leave out --from-original"
        )


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
