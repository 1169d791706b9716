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
from typing import TYPE_CHECKING, Any, Literal

import llm
import sqlite_utils
from llm.utils import monotonic_ulid

from .check import check_language, check_length, harmless, summary_text
from .errors import CheckFailed, NothingToCompact, SummarizerError
from .log import check_writable, open_log
from .pins import with_pins
from .plan import Plan, Wishes, plan_compaction
from .prefix import Prefix, logged_prefix
from .redaction import redacted, without_secrets
from .schema import Record
from .source import Source, read_source
from .store import Draft, store_compaction
from .summarizers import EXTRACTIVE, get_summarizer, has_same_provider, is_own_model
from .summarizers.template import load_template
from .summary import Answer, Head, Summarizer, Usage, Watch, is_record_line, with_record_line
from .tokens import (
    MESSAGE_TOKENS,
    count_text,
    parse_keep,
    parse_length,
    parse_tokens,
)
from .values import group_of, lost_values, with_values

if TYPE_CHECKING:
    from .examination import Examination

Trigger = Literal["manual", "auto", "overflow"]


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
        return Usage(self.input_tokens, self.output_tokens, self.calls, self.cached_tokens)


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
    check: bool | str = False,
    prune_tools: bool = False,
    reuse_cache: bool = False,
    again: bool = False,
) -> Compaction:
    """Compact a logged conversation, as `llm compact` does, and return what came of it.

    Without `conversation_id` it is the one that `llm -c` would continue, without `database` llm's
    own log, without `model` the conversation's own model summarizes. `keep` is a size such as
    "2x" (exchanges), "6m" (messages), "8k" (tokens) or "20%" (of the model's context window),
    `max_summary` one such as "1k" (tokens) or "5%" (of what it replaces), `window` one such as
    "32k" (the summarizer's context window). `from_original` summarizes the original messages of
    all generations instead of the previous summary. `pins` are texts that are kept word for word,
    in this and in every later generation. `check` asks a model for facts of the summarized part
    before anything is stored: the summarizer with `True`, or the one that is named. With
    `prune_tools` there is no summary and no summarizer: only the large tool output in the older
    part is shortened. With `reuse_cache` the conversation's own model is sent the conversation as
    it was sent before and not a transcript, so that its provider's cache of it is of use.

    Raises a `CompactionError` and writes nothing where it can't be done well; `ValueError` for
    text that is no size.
    """
    wishes = Wishes(
        keep=parse_keep(keep) if keep else None,
        max_summary=parse_length(max_summary) if max_summary else None,
        focus=focus,
        from_original=from_original,
        pins=pins,
        again=again,
        prune_tools=prune_tools,
    )
    window_tokens = parse_tokens(window) if window else None
    with open_log(Path(database) if database else default_database()) as db:
        source = read_source(db, conversation_id)
        plan = plan_compaction(source, wishes)
        if prune_tools:
            from .prune import draft_pruning

            return stored_compaction(db, plan, draft_pruning(plan))
        own_prompt = load_template(template) if template else None
        name = model_name(source, model, own_prompt)
        summarizer = get_summarizer(
            name,
            options=list((options or {}).items()),
            key=key,
            window=window_tokens,
            jobs=jobs,
            template=own_prompt,
            prefix=reusable_prefix(db, plan, name, asked=reuse_cache),
        )
        return carry_out(db, plan, summarizer, check=check)


def model_name(
    source: Source, model: str | None, template: llm.Template | None, stored: str | None = None
) -> str:
    """Who summarizes: the model asked for, the template's, the stored, the conversation's own."""
    return model or (template and template.model) or stored or source.model_id


def reusable_prefix(
    db: sqlite_utils.Database,
    plan: Plan,
    name: str,
    *,
    asked: bool | None,
    stored: bool = False,
) -> Prefix | None:
    """What is needed to send the conversation as it was, where that is wanted.

    What is stored holds where nobody says otherwise, and where it can be done. Raises
    `SummarizerError` where somebody asks for it and no cache can have what would be sent.
    """
    model_id, is_sent = plan.source.model_id, plan.head.sent is not None
    if asked is False or not (asked or stored):
        return None
    if is_sent and is_own_model(name, model_id):
        return logged_prefix(db, plan.source.id)
    if not asked:
        return None
    if not is_sent:
        raise SummarizerError(
            "The messages that --from-original summarizes are not sent any more, so they are in "
            "no cache. Leave out --reuse-cache or --from-original"
        )
    raise SummarizerError(
        f"{name} can't use what the provider of {model_id} has in its cache. Leave out "
        f"--reuse-cache, or summarize with -m {model_id}"
    )


def default_database() -> Path:
    """Where llm keeps its log."""
    return Path(llm.user_dir()) / "logs.db"  # type: ignore[no-untyped-call]


def carry_out(
    db: sqlite_utils.Database,
    plan: Plan,
    summarizer: Summarizer,
    *,
    watch: Watch | None = None,
    check: bool | str = False,
) -> Compaction:
    """Summarize, check and store. `watch` is told how the summary comes about.

    `check` says that a model is asked for facts of the head, too, and which one if not the
    summarizer. Raises `SummarizerError`, `CheckFailed`, `NothingToCompact` or `StoreError`; then
    nothing was written.
    """
    check_writable(db)
    try:
        examination = _examination(plan, summarizer, check) if check else None
        draft = draft_compaction(plan, summarizer, watch=watch)
        if examination:
            draft = examination.passed(draft)
    except SummarizerError as ex:
        raise SummarizerError(f"{ex}. Nothing was written") from ex
    except CheckFailed as ex:
        raise CheckFailed(f"{ex}. Nothing was written") from ex
    return stored_compaction(db, plan, draft)


def stored_compaction(db: sqlite_utils.Database, plan: Plan, draft: Draft) -> Compaction:
    """Store a plan's draft, and tell what it is now.

    Raises `StoreError`; then nothing was written.
    """
    with uninterrupted():
        stored = store_compaction(db, plan.source, draft, again=plan.wishes.again)
    return Compaction(
        **vars(draft.record),
        id=stored.conversation_id,
        turn_id=draft.turn_id,
        source_id=plan.source.id,
        model=plan.source.model_id,
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
    summary_tokens, tokens_after, is_gain = _outcome(plan, count_text(summary))
    if not is_gain:
        raise _no_gain(plan, summarizer, summary_tokens, is_written_by_model=answer.usage.calls > 0)
    record = Record(
        generation=plan.generation,
        trigger=trigger,
        summarizer=summarizer.name,
        prompt_version=answer.prompt_version or summarizer.prompt_version,
        instructions=plan.head.focus and redacted(plan.head.focus, plan.head.secrets),
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
        cached_tokens=answer.usage.cached,
        duration_ms=duration_ms,
        datetime_utc=date.isoformat(),
        **_values(plan, summary),
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


def _values(plan: Plan, summary: str) -> dict[str, Any]:
    """What the record says of the rules and exact values that were found, and which are lost."""
    from .rules import lost_rules, said_rules

    found = [fact for fact in plan.head.facts if fact.is_used]
    known = plan.head.secrets
    # A secret was not lost, it was left out.
    lost = [
        x for x in lost_values(found, summary, plan.tail) if redacted(x.value, known) == x.value
    ]
    rules = said_rules(plan.head)
    told = [
        *(
            {"value": redacted(rule), "kind": "rule"}
            for rule in lost_rules(rules, summary, plan.tail)
        ),
        *({"value": fact.value, "kind": group_of(fact)} for fact in lost),
    ]
    return {
        "values_found": len(found) + len(rules),
        "values_lost": len(told),
        "lost": told,
    }


def redrafted(plan: Plan, draft: Draft, summary: str) -> Draft | None:
    """The draft of a plan with another summary, None where that is too long, or nothing gained."""
    first_line, _, rest = summary.partition("\n")
    if is_record_line(first_line):
        # It says how many messages are summarized, and another plan may summarize fewer.
        summary = with_record_line(rest.lstrip("\n"), plan.head)
    size = count_text(summary)
    summary_tokens, tokens_after, is_gain = _outcome(plan, size)
    if not is_gain or (plan.most is not None and size > plan.most):
        return None
    record = replace(
        draft.record,
        messages_summarized=plan.messages_summarized,
        messages_kept=plan.messages_kept,
        exchanges_summarized=plan.exchanges_summarized,
        exchanges_kept=plan.exchanges_kept,
        **_values(plan, summary),
        tokens_after=tokens_after,
        summary_tokens=summary_tokens,
    )
    tail, stands_for = plan.tail, plan.stands_for
    return replace(draft, summary=summary, tail=tail, stands_for=stands_for, record=record)


def _outcome(plan: Plan, size: int) -> tuple[int, int, bool]:
    """A summary's tokens and those of the new conversation, and whether that is smaller."""
    summary_tokens = plan.calibration.tokens(size)
    tokens_after = plan.tokens_kept + plan.calibration.tokens(MESSAGE_TOKENS + size)
    # What a provider counted and we did not (an image, say) must not pass for a gain.
    return summary_tokens, tokens_after, size < plan.room and tokens_after < plan.tokens_before


def _examination(plan: Plan, summarizer: Summarizer, check: bool | str) -> Examination:
    """The check by a model. What speaks against it is known before a summary is paid for."""
    # Few ask for it, and it needs the pipeline itself.
    from .examination import Examination
    from .questions import get_examiner

    examiner = get_examiner(None if check is True else str(check), summarizer)
    return Examination(plan, summarizer, examiner)


def _checked(answer: Answer, plan: Plan) -> str:
    """The summary as it may be stored, with what code adds to it.

    Raises `SummarizerError` where it is none, or not what it has to be.
    """
    # Their expressions take a tenth of a second to compile, and a prompt that stays below its
    # threshold needs none of them.
    from .rules import with_rules
    from .summarizers.extractive import with_quotes

    head = plan.head
    summary = with_record_line(summary_text(answer), head)
    # What needs no model says is quoted, in whatever language that is, rules included.
    if answer.usage.calls:
        check_language(summary, head.language)
        # Values come last, because they take what room the rest leaves.
        summary = with_values(with_quotes(with_rules(summary, head), head), head)
    summary = redacted(with_pins(harmless(summary), head), head.secrets)
    if plan.most is not None:
        check_length(count_text(summary), plan.most)
    return summary


def _head_for(summarizer: Summarizer, head: Head) -> Head:
    """The head with the room that a model has beside the rules that it may not quote."""
    if head.most is None or summarizer.name == EXTRACTIVE:
        return head
    from .rules import rules_tokens

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
