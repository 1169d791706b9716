"""The one pipeline: conversation -> cut -> summary -> check -> store."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import llm
import sqlite_utils
from llm.parts import Message
from llm.utils import monotonic_ulid

from .check import check_language, check_length, harmless, summary_text
from .conversation import History, generation_of, history_of, requests, without_reasoning
from .cut import Allowance, Cut, choose_cut, cut_points
from .errors import ConversationError, NothingToCompact, SummarizerError
from .language import language_of, words
from .pins import clean_pins, pinned_tokens, with_pins, without_pins
from .placeholder import restored_from
from .redaction import redacted, secrets_in, texts_of, without_secrets
from .rules import rules_tokens, with_rules
from .sizes import message_sizes
from .store import (
    Draft,
    Record,
    Source,
    already_compacted,
    check_writable,
    open_log,
    read_source,
    store_compaction,
)
from .summarizers import EXTRACTIVE, get_summarizer, has_same_provider
from .summarizers.template import load_template
from .summary import Answer, Head, Summarizer, Usage, Watch, with_record_line
from .tokens import (
    MESSAGE_TOKENS,
    Calibration,
    Size,
    Unit,
    calibrate,
    count_text,
    message_tokens,
    parse_keep,
    parse_length,
    parse_tokens,
)
from .transcript import by_reference
from .values import group_of, lost_values, with_values
from .windows import context_window

# Where a summary would have to be shorter than this (tokens), no model needs to be asked.
SHORTEST_SUMMARY = 2
# How long a summary should be, where nothing else is said: a tenth, within these limits (tokens).
LEAST_ROOM, MOST_ROOM = 300, 4_000
AIM, MOST_LEFT = 0.4, 0.6
"The shares of a limit that a compaction aims at, and that it leaves at most."

Trigger = Literal["manual", "auto", "overflow"]


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
    tokens_kept: int
    "Everything but the summary: what goes with every request, system prompt, request, tail."
    calibration: Calibration
    room: int
    "The plain count that the summary has to stay below."
    cut: Cut
    most: int | None = None
    "The plain count above which the summary is refused, pins included."
    pins: tuple[str, ...] = ()
    "Those of the head's that are new, to be stored with the compaction."


@dataclass(frozen=True)
class Compaction(Record):
    """A compaction that was stored: its record, and where it went."""

    id: str
    "The new conversation."
    turn_id: str
    source_id: str
    model: str
    "The conversation's model, which goes on in the new conversation."
    summary: str
    is_newest: bool
    "Whether `llm -c` goes on with the new conversation."

    @property
    def usage(self) -> Usage:
        """What the summarizer used."""
        return Usage(self.input_tokens, self.output_tokens, self.calls)


def compact(
    conversation_id: str | None = None,
    *,
    database: str | Path | None = None,
    model: str | None = None,
    options: Mapping[str, str] | None = None,
    key: str | None = None,
    template: str | None = None,
    window: str | None = None,
    jobs: int = 1,
    keep: str | None = None,
    max_summary: str | None = None,
    focus: str | None = None,
    from_original: bool = False,
    pins: Sequence[str] = (),
    prune_tools: bool = False,
    again: bool = False,
) -> Compaction:
    """Compact a logged conversation, as `llm compact` does, and return what came of it.

    Without `conversation_id` it is the one that `llm -c` would continue, without `database` llm's
    own log, without `model` the conversation's own model summarizes. `keep` is a size such as
    "2x" (exchanges), "6m" (messages), "8k" (tokens) or "20%" (of the model's context window),
    `max_summary` one such as "1k" (tokens) or "5%" (of what it replaces), `window` one such as
    "32k" (the summarizer's context window). `from_original` summarizes the original messages of
    all generations instead of the previous summary. `pins` are texts that are kept word for word,
    in this and in every later generation. With `prune_tools` there is no summary and no
    summarizer: only the large tool output in the older part is shortened.

    Raises a `CompactionError` and writes nothing where it can't be done well; `ValueError` for
    text that is no size.
    """
    keep_size = parse_keep(keep) if keep else None
    longest = parse_length(max_summary) if max_summary else None
    window_tokens = parse_tokens(window) if window else None
    with open_log(Path(database) if database else default_database()) as db:
        source = read_source(db, conversation_id)
        plan = plan_compaction(
            source,
            keep=keep_size,
            max_summary=longest,
            focus=focus,
            from_original=from_original,
            pins=pins,
            again=again,
            prune_tools=prune_tools,
        )
        if prune_tools:
            from .prune import draft_pruning

            return stored_compaction(db, source, draft_pruning(plan), again=again)
        own_prompt = load_template(template) if template else None
        summarizer = get_summarizer(
            model_name(source, model, own_prompt),
            options=list((options or {}).items()),
            key=key,
            window=window_tokens,
            jobs=jobs,
            template=own_prompt,
        )
        return carry_out(db, plan, summarizer, again=again)


def model_name(
    source: Source, model: str | None, template: llm.Template | None, stored: str | None = None
) -> str:
    """Who summarizes: the model asked for, the template's, the stored, the conversation's own."""
    return model or (template and template.model) or stored or source.model_id


def default_database() -> Path:
    """Where llm keeps its log."""
    return Path(llm.user_dir()) / "logs.db"  # type: ignore[no-untyped-call]


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
    calibration = calibration or calibrate(sizes, source.reported)
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
    cut = choose_cut(body, weights, keep, window or 0, allowance)
    summarized, kept = cut.head(body), cut.tail(body)
    tail = tuple(without_reasoning(kept))
    head_tokens = sum(replaced_sizes) + sum(cut.head(body_sizes))
    kept_tokens = request_tokens + sum(system_sizes)
    for message, sent, size in zip(kept, tail, cut.tail(body_sizes), strict=True):
        kept_tokens += size if sent is message else message_tokens(sent)
    room = _room(head_tokens, max_summary, limit, pinned)
    most = room if max_summary else _most(room, limit, calibration, kept_tokens)
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
    if from_original and previous:
        head = _from_original(head, limit)
    if head_tokens <= request_tokens + MESSAGE_TOKENS + SHORTEST_SUMMARY:
        gain = calibration.tokens(head_tokens)
        raise NothingToCompact(f"Nothing to gain: only {gain:,} tokens could be summarized")
    return Plan(
        source=source,
        head=head,
        tail=tail,
        request=request,
        generation=generation,
        stands_for=len(head.originals),
        messages_summarized=len(replaced_sizes) + len(summarized),
        messages_kept=len(kept) - source.pending,
        exchanges_summarized=len(requests(summarized)),
        exchanges_kept=len(requests(kept)) - source.pending,
        tokens_before=calibration.conversation(sizes),
        tokens_summarized=calibration.tokens(head_tokens),
        tokens_kept=calibration.overhead + calibration.tokens(kept_tokens),
        calibration=calibration,
        room=sum(sizes) - kept_tokens - MESSAGE_TOKENS,
        cut=cut,
        most=most,
        pins=new_pins,
    )


def _check_originals(source: Source, history: History) -> None:
    before = history.summary.marker.head if history.summary else 0
    if len(source.originals) < before + len(history.body):
        raise ConversationError(
            "This log does not have the original messages of all generations, so they can't be "
            "summarized anew. Leave out --from-original"
        )


def _from_original(head: Head, limit: Size | None) -> Head:
    """The head of a compaction that takes nothing from the summaries before it."""
    everything = sum(message_tokens(message) for message in head.originals)
    # A tenth of all that was ever said may be more than what is left of it.
    tokens = min(everything, 5 * head.tokens)
    room = head.room if head.most is not None else _room(tokens, None, limit)
    return replace(head, messages=head.originals, previous=None, tokens=tokens, room=room)


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


def _most(room: int, limit: Size | None, calibration: Calibration, kept: int) -> int | None:
    """The longest summary with which the conversation is small enough below a limit."""
    if limit is None or limit.unit != "tokens":
        return None
    left = int(limit.value * MOST_LEFT) - calibration.overhead
    # Where the tail alone is too large, the summary is not to blame.
    return max(room, calibration.plain(left) - kept - MESSAGE_TOKENS)


def _room_of_pins(room: int, max_summary: Size | None, limit: Size | None) -> int | None:
    """What pins may take: more than a limit aims at would reach it again and again."""
    if max_summary:
        return room
    return int(limit.value * AIM) if limit and limit.unit == "tokens" else None


def _too_many_pins(pinned: int, allowed: int) -> ConversationError:
    return ConversationError(
        f"The pins alone take {pinned:,} tokens, and {allowed:,} are allowed. Allow a longer "
        "summary, or remove pins with llm compact unpin"
    )


def _window(model_id: str, keep: Size) -> int:
    window = context_window(model_id)
    if window is None:
        raise ConversationError(
            f"No context window known for {model_id!r}, so --keep {keep} can't be counted. Use "
            "--keep 8k (tokens) or --keep 2x (exchanges), or say the window: "
            f"llm compact settings set window.{model_id} 32k"
        )
    return window


def carry_out(
    db: sqlite_utils.Database,
    plan: Plan,
    summarizer: Summarizer,
    *,
    watch: Watch | None = None,
    again: bool = False,
) -> Compaction:
    """Summarize, check and store. `watch` is told how the summary comes about.

    Raises `SummarizerError`, `NothingToCompact` or `StoreError`; then nothing was written.
    """
    check_writable(db)
    try:
        draft = draft_compaction(plan, summarizer, watch=watch)
    except SummarizerError as ex:
        raise SummarizerError(f"{ex}. Nothing was written") from ex
    return stored_compaction(db, plan.source, draft, again=again)


def stored_compaction(
    db: sqlite_utils.Database, source: Source, draft: Draft, *, again: bool = False
) -> Compaction:
    """Store a draft, and tell what it is now. Raises `StoreError`; then nothing was written."""
    with uninterrupted():
        stored = store_compaction(db, source, draft, again=again)
    return Compaction(
        **vars(draft.record),
        id=stored.conversation_id,
        turn_id=draft.turn_id,
        source_id=source.id,
        model=source.model_id,
        summary=draft.summary,
        is_newest=stored.is_newest,
    )


def draft_compaction(
    plan: Plan, summarizer: Summarizer, *, watch: Watch | None = None, trigger: Trigger = "manual"
) -> Draft:
    """Summarize and check. Nothing is written yet.

    Raises `SummarizerError` or `NothingToCompact`.
    """
    started, date = time.monotonic(), datetime.now(timezone.utc)
    head = plan.head
    if not has_same_provider(summarizer.name, plan.source.model_id):
        head = without_secrets(head)
    try:
        answer = summarizer.summarize(_head_for(summarizer, head), watch or Watch())
        summary = _checked(answer, plan)
    except SummarizerError as ex:
        told = str(ex).rstrip(". ")
        raise SummarizerError(f"The summarizer {summarizer.name} {told}") from ex
    duration_ms = int((time.monotonic() - started) * 1_000)
    size = count_text(summary)
    summary_tokens = plan.calibration.tokens(size)
    tokens_after = plan.tokens_kept + plan.calibration.tokens(MESSAGE_TOKENS + size)
    # What a provider counted and we did not (an image, say) must not pass for a gain.
    if size >= plan.room or tokens_after >= plan.tokens_before:
        raise _no_gain(plan, summarizer, summary_tokens, is_written_by_model=answer.usage.calls > 0)
    found = [fact for fact in plan.head.facts if fact.is_used]
    # A secret was not lost, it was left out.
    lost = [x for x in lost_values(found, summary, plan.tail) if redacted(x.value) == x.value]
    record = Record(
        generation=plan.generation,
        trigger=trigger,
        summarizer=summarizer.name,
        prompt_version=summarizer.prompt_version,
        instructions=plan.head.focus,
        messages_summarized=plan.messages_summarized,
        messages_kept=plan.messages_kept,
        exchanges_summarized=plan.exchanges_summarized,
        exchanges_kept=plan.exchanges_kept,
        tokens_before=plan.tokens_before,
        tokens_after=tokens_after,
        summary_tokens=summary_tokens,
        input_tokens=answer.usage.input,
        output_tokens=answer.usage.output,
        calls=answer.usage.calls,
        duration_ms=duration_ms,
        datetime_utc=date.isoformat(),
        values_found=len(found),
        values_lost=len(lost),
        lost=[{"value": fact.value, "kind": group_of(fact)} for fact in lost],
    )
    return Draft(
        turn_id=str(monotonic_ulid()).lower(),
        request=plan.request,
        summary=summary,
        tail=plan.tail,
        stands_for=plan.stands_for,
        record=record,
        pins=plan.pins,
    )


def _checked(answer: Answer, plan: Plan) -> str:
    """The summary as it may be stored, with what code adds to it.

    Raises `SummarizerError` where it is none, or not what it has to be.
    """
    head = plan.head
    summary = with_record_line(summary_text(answer), head)
    # What needs no model says is quoted, in whatever language that is, rules included.
    if answer.usage.calls:
        check_language(summary, head.language)
        # Last, because they take what room the rest leaves.
        summary = with_values(with_rules(summary, head), head)
    known = secrets_in(text for message in head.originals for text in texts_of(message))
    summary = redacted(with_pins(harmless(summary), head), known)
    if plan.most is not None:
        check_length(count_text(summary), plan.most)
    return summary


def _head_for(summarizer: Summarizer, head: Head) -> Head:
    """The head with the room that a model has beside the rules that it may not quote."""
    if head.most is None or summarizer.name == EXTRACTIVE:
        return head
    rules = rules_tokens(head)
    return replace(head, room=max(1, head.room - rules), most=max(1, head.most - rules))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C does nothing in the milliseconds of the write: nobody could tell what it came to."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        # None is a handler that was not set from Python, and can't be set again from there.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def _no_gain(
    plan: Plan, summarizer: Summarizer, summary_tokens: int, *, is_written_by_model: bool
) -> NothingToCompact | SummarizerError:
    told = (
        f"a summary of {summary_tokens:,} tokens is not smaller than the "
        f"{plan.tokens_summarized:,} tokens that it would replace"
    )
    if is_written_by_model:
        return SummarizerError(f"The summarizer {summarizer.name} failed: {told}")
    return NothingToCompact(f"Nothing to gain: {told}")
