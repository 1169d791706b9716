"""All that a person sees."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from llm.parts import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from llm.utils import token_usage_string

from .compaction import Compaction
from .conversation import history_of
from .pins import Pinned, pinned_tokens
from .placeholder import PRUNE_TOOLS
from .plan import Plan
from .records import LoggedCompaction
from .schema import Record
from .source import Source
from .store import Draft, Stored
from .summary import Usage, Watch
from .transcript import attachment_line
from .vocabulary import counter


class Shown(Watch):
    """A summary on stdout, and the calls that it takes on a terminal's stderr.

    A terminal shows what a model writes as it comes. What goes elsewhere is data: the summary as
    it was stored, and nothing else.
    """

    def __init__(self, *, summary: bool, progress: bool) -> None:
        self._summary = summary
        self._streams = summary and is_terminal()
        self._notes = progress
        self._progress = progress and sys.stderr.isatty()
        self._told = ""

    def text(self, text: str) -> None:
        if self._streams:
            self._told += text
            _output(text, nl=False)

    def progress(self, done: int, calls: int) -> None:
        if self._progress and calls > 1:
            click.secho(f"\r{done:,} of about {calls:,} calls", dim=True, err=True, nl=False)
            if done >= calls:
                click.echo(err=True)

    def note(self, text: str) -> None:
        if self._notes:
            click.echo(text, err=True)

    def finish(self, summary: str) -> None:
        """Show what was not shown on the way: all of it, or how what came was changed."""
        if not self._summary:
            return
        rest = _behind(self._told, summary)
        if rest is None:
            _output("")
            click.secho("Stored as:", dim=True, err=True)
        _output(summary if rest is None else rest)

    def break_off(self) -> None:
        """End the line of a summary that will not be finished, so that the error has its own."""
        if self._told:
            _output("")


def is_terminal() -> bool:
    """Whether a person reads what goes to stdout."""
    return sys.stdout.isatty()


def _behind(told: str, summary: str) -> str | None:
    """What of the summary comes after what was told, None if it begins with something else.

    Space between words does not count.
    """
    position = 0
    for character in "".join(told.split()):
        while summary[position : position + 1].isspace():
            position += 1
        if summary[position : position + 1] != character:
            return None
        position += 1
    return summary[position:].rstrip() if told else summary


class Terminal:
    """What a person sees of automatic compaction, on stderr."""

    def __init__(self, database: str | None, *, is_chat: bool) -> None:
        self._where = f" -d {shlex.quote(database)}" if database else ""
        self._is_interactive = is_chat and sys.stdout.isatty() and sys.stderr.isatty()
        self._is_line_open = False

    def working(self, plan: Plan, summarizer: str) -> None:
        if sys.stderr.isatty():
            what = f"Compacting {plan.tokens_before:,} tokens with {summarizer}"
            click.secho(f"\r{what}", dim=True, err=True, nl=False)
            self._is_line_open = True

    def compacted(self, source: Source, draft: Draft, stored: Stored | None) -> None:
        record = draft.record
        original = ""
        if stored and stored.conversation_id != source.id:
            original = f". Original: llm -c{self._where} --cid {shlex.quote(source.id)}"
            if not stored.is_newest:
                original = f". Go on: llm -c{self._where} --cid {stored.conversation_id}{original}"
        self._line(
            f"Compacted {record.tokens_before:,} -> {record.tokens_after:,} tokens "
            f"({_parts(record)}) with {record.summarizer}{_cached(record)}{original}"
        )

    def moved(self, conversation_id: str, newest: str) -> None:
        self._line(f"{conversation_id} was compacted by another process, going on in {newest}")

    def warn(self, text: str) -> None:
        self._line(text)

    def left(self, share: float) -> None:
        if self._is_interactive:
            # llm ends the line of its answer after this.
            text = f"Context left until compaction: {share:.0%}"
            click.echo("\n" + click.style(text, dim=True), err=True, nl=False)

    def _line(self, text: str) -> None:
        if self._is_line_open:
            click.echo("\r\x1b[2K", err=True, nl=False)
            self._is_line_open = False
        click.echo(text, err=True)


def _output(text: str, *, nl: bool = True) -> None:
    """Write to stdout. A reader that has left, or a full disk, does not undo a compaction."""
    try:
        click.echo(text, nl=nl)
    except OSError as ex:
        if not isinstance(ex, BrokenPipeError):
            click.echo(f"Could not show the summary: {ex.strerror}", err=True)
        # Nothing more is written there, also not when Python flushes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_start(plan: Plan, summarizer: str) -> None:
    """Tell a person at a terminal what is going on; a pipe needs no progress."""
    if sys.stderr.isatty():
        what = f"{plan.messages_summarized:,} messages, {plan.tokens_summarized:,} tokens"
        click.secho(f"Summarizing {what} with {summarizer}", dim=True, err=True)


def show_done(compaction: Compaction, database: str | None) -> None:
    """The closing line. `database` is where the log is, unless it is llm's own."""
    c = compaction
    where = f" -d {shlex.quote(database)}" if database else ""
    is_picked = c.is_newest and not database
    go_on = "" if is_picked else f"Go on: llm -c{where}{'' if c.is_newest else f' --cid {c.id}'}. "
    click.echo(
        f"Compacted {c.tokens_before:,} -> {c.tokens_after:,} tokens "
        f"({_parts(c)}) with {c.summarizer}{_cached(c)}. New conversation: {c.id}. {go_on}"
        f"Original: llm -c{where} --cid {shlex.quote(c.source_id)}",
        err=True,
    )
    if c.values_lost:
        which = where if c.is_newest else f"{where} {c.id}"
        told = f"{c.values_lost:,} of {c.values_found:,} values"
        click.echo(f"Not carried over: {told}; llm compact show{which} --lost", err=True)


def _cached(record: Record) -> str:
    if not record.cached_tokens:
        return ""
    return f" ({record.cached_tokens:,} tokens of its input were cached)"


def show_check(compaction: Compaction) -> None:
    """What a check has come to, if there was one."""
    told = _check(compaction)
    if told:
        click.echo(f"Checked with {told}", err=True)


def _check(record: Record) -> str | None:
    c = record
    if c.check_model is None or c.check_asked is None or c.check_passed is None:
        return None
    if not c.check_asked:
        return f"{c.check_model}: nothing could be asked"
    told = (
        f"{c.check_model}: {c.check_passed} of {c.check_asked} answered from the new conversation"
    )
    overlooked = c.check_asked - c.check_passed
    if overlooked:
        told += f", {overlooked} not found though word for word in it"
    if c.check_repairs:
        told += f" (repaired: {c.check_repairs.replace(',', ', ')})"
    return told


def show_usage(usage: Usage) -> None:
    """The summarizer's tokens, worded as llm does."""
    used = _usage(usage.input, usage.output, usage.cached) or "not reported"
    click.secho(f"Token usage: {used}", fg="yellow", bold=True, err=True)


def _usage(input: int | None, output: int | None, cached: int | None) -> str:
    details = None if cached is None else {"cached_tokens": cached}
    return str(token_usage_string(input, output, details))


def show_json(data: dict[str, Any] | list[dict[str, Any]]) -> None:
    _output(json.dumps(data, indent=2, ensure_ascii=False))


def compaction_json(compaction: Compaction) -> dict[str, Any]:
    """The compaction as `--json` prints it."""
    c = compaction
    return {
        "id": c.id,
        "turn_id": c.turn_id,
        "source_id": c.source_id,
        "generation": c.generation,
        "model": c.model,
        "summarizer": c.summarizer,
        "messages_summarized": c.messages_summarized,
        "messages_kept": c.messages_kept,
        "exchanges_summarized": c.exchanges_summarized,
        "exchanges_kept": c.exchanges_kept,
        "tokens_before": c.tokens_before,
        "tokens_after": c.tokens_after,
        "summary_tokens": c.summary_tokens,
        "summary": c.summary,
        "usage": {"input": c.input_tokens, "output": c.output_tokens, "calls": c.calls},
        "cached_tokens": c.cached_tokens,
        "duration_ms": c.duration_ms,
        "values_found": c.values_found,
        "values_lost": c.values_lost,
        "lost": c.lost,
        "check_model": c.check_model,
        "check_asked": c.check_asked,
        "check_passed": c.check_passed,
        "check_repairs": c.check_repairs,
    }


def plan_json(plan: Plan, summarizer: str, calls: int) -> dict[str, Any]:
    """The plan as `--dry-run --json` prints it: the same keys, as far as they are known."""
    return {
        "id": None,
        "source_id": plan.source.id,
        "generation": plan.generation,
        "model": plan.source.model_id,
        "summarizer": summarizer,
        "messages_summarized": plan.messages_summarized,
        "messages_kept": plan.messages_kept,
        "exchanges_summarized": plan.exchanges_summarized,
        "exchanges_kept": plan.exchanges_kept,
        "tokens_before": plan.tokens_before,
        "tokens_summarized": plan.tokens_summarized,
        "tokens_kept": plan.tokens_tail,
        "tokens_system": plan.tokens_system,
        "calls": calls,
        "counted_by": _counted_by(plan),
    }


def show_plan(plan: Plan, summarizer: str, calls: int) -> None:
    """What `--dry-run` tells."""
    about = _count(calls, "call") if calls <= 1 else f"about {calls:,} calls"
    click.echo(
        f"Would compact conversation {plan.source.id} (generation {plan.generation}) "
        f"with {summarizer} in {about}"
    )
    system = len(history_of(plan.source.messages).system)
    messages = plan.messages_summarized + plan.messages_kept + system
    rows = [
        (
            # Where all generations are summarized anew, it is about all of them.
            "now" if messages == len(plan.source.messages) else "in all",
            plan.tokens_before,
            _count(messages, "message"),
        ),
        (
            "summarized",
            plan.tokens_summarized,
            f"{_count(plan.messages_summarized, 'message')}, "
            f"{_count(plan.exchanges_summarized, 'exchange')}",
        ),
        (
            "kept",
            plan.tokens_tail,
            f"{_count(plan.messages_kept, 'message')}, {_count(plan.exchanges_kept, 'exchange')}",
        ),
    ]
    if plan.tokens_system:
        with_each = "and what goes with each request" if plan.calibration.overhead else ""
        told = ", ".join(filter(None, [_count(system, "message") if system else "", with_each]))
        rows.append(("system", plan.tokens_system, told))
    for name, tokens, told in rows:
        click.echo(f"{name + ':':<12}{tokens:>9,} tokens  ({told})")
    if plan.head.pins:
        pinned = plan.calibration.tokens(pinned_tokens(plan.head.pins, plan.head.language))
        click.echo(f"{'pinned:':<12}{pinned:>9,} tokens  ({_count(len(plan.head.pins), 'pin')})")
    click.echo(f"{'counted by:':<12}{_counted_by(plan)}")


def pruning_json(plan: Plan, record: Record) -> dict[str, Any]:
    """The plan of `--prune-tools` as `--dry-run --json` prints it."""
    return {
        "id": None,
        "source_id": plan.source.id,
        "generation": record.generation,
        "model": plan.source.model_id,
        "summarizer": record.summarizer,
        "messages_summarized": record.messages_summarized,
        "messages_kept": record.messages_kept,
        "exchanges_summarized": record.exchanges_summarized,
        "exchanges_kept": record.exchanges_kept,
        "tokens_before": record.tokens_before,
        "tokens_after": record.tokens_after,
        "calls": record.calls,
        "counted_by": _counted_by(plan),
    }


def show_pruning(plan: Plan, record: Record) -> None:
    """What `--prune-tools --dry-run` tells."""
    click.echo(
        f"Would compact conversation {plan.source.id} (generation {record.generation}) "
        f"{record.tokens_before:,} -> {record.tokens_after:,} tokens ({_parts(record)})"
    )
    click.echo(f"{'counted by:':<12}{_counted_by(plan)}")


def show_settings(stored: Sequence[tuple[str, str]]) -> None:
    """What `llm compact settings list` prints."""
    for name, value in stored:
        model = name.removeprefix("learned.")
        is_learned = model != name
        click.echo(f"window.{model}: {value} (learned)" if is_learned else f"{name}: {value}")
    if not stored:
        click.echo("No settings stored.", err=True)


def show_change(told: str) -> None:
    """What became of a setting."""
    click.echo(told, err=True)


def show_list(compactions: Sequence[LoggedCompaction]) -> None:
    """What `llm compact list` prints: a line for each, as long as a terminal is wide."""
    rows = [_columns(compaction) for compaction in compactions]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        _output("  ".join(cells).rstrip()[:width])
    if not rows:
        click.echo("No compactions found.", err=True)


def _columns(c: LoggedCompaction) -> tuple[str, ...]:
    return (
        c.conversation_id,
        _minute(c.datetime_utc),
        f"#{c.generation}",
        f"{c.tokens_before:,} -> {c.tokens_after:,}",
        c.trigger,
        c.summarizer,
        f"from {c.source_conversation_id}",
        _one_line(c.name or ""),
    )


def show_compaction(c: LoggedCompaction, lineage: Sequence[str], summary: str) -> None:
    """What `llm compact show` prints: the record, and the summary below it."""
    used = _usage(c.input_tokens, c.output_tokens, c.cached_tokens)
    took = f"{(c.duration_ms or 0) / 1_000:,.1f} s"
    rows = [
        ("conversation", f"{c.conversation_id} {_one_line(c.name or '')}"),
        ("lineage", " -> ".join(lineage)),
        ("compacted", f"{_minute(c.datetime_utc)} UTC, generation {c.generation}, {c.trigger}"),
        ("tokens", f"{c.tokens_before:,} -> {c.tokens_after:,} (summary: {c.summary_tokens:,})"),
        *_told_parts(c),
        ("summarizer", ", ".join(filter(None, [c.summarizer, _count(c.calls or 0, "call"), took]))),
        ("usage", used if c.calls else None),
        ("instructions", c.instructions),
        ("checked", _check(c)),
        ("not carried", _not_carried(c)),
    ]
    for name, told in rows:
        if told:
            _output(f"{name + ':':<14}{told.rstrip()}")
    if summary:
        _output(f"\n{summary}")


def _told_parts(c: LoggedCompaction) -> list[tuple[str, str]]:
    if c.summarizer == PRUNE_TOOLS:
        return [("shortened", f"tool output in {_count(c.messages_summarized, 'message')}")]
    return [
        ("summarized", _exchanges_and_messages(c.exchanges_summarized, c.messages_summarized)),
        ("kept", _exchanges_and_messages(c.exchanges_kept, c.messages_kept)),
    ]


def _exchanges_and_messages(exchanges: int, messages: int) -> str:
    return f"{_count(exchanges, 'exchange')} ({_count(messages, 'message')})"


def _not_carried(c: LoggedCompaction) -> str | None:
    if c.values_lost is None or c.values_found is None:
        return None
    return f"{c.values_lost:,} of {_count(c.values_found, 'value')} (--lost tells which)"


def show_lost(compaction: LoggedCompaction) -> None:
    """What `llm compact show --lost` prints: a value a line, its kind in front."""
    if compaction.lost is None:
        click.echo("This compaction recorded no values that were not carried over.", err=True)
    elif not compaction.lost:
        click.echo("Every value was carried over.", err=True)
    for item in compaction.lost or ():
        _output(f"{item.get('kind', 'value')}: {item.get('value', '')}")


def show_context(messages: Sequence[Message]) -> None:
    """What `llm compact show --context` prints: each message under its role, nothing left out."""
    for message in messages:
        _output(click.style(f"[{message.role}]", bold=True))
        _output("\n".join(_shown_part(part) for part in message.parts) + "\n")


def _shown_part(part: Part) -> str:
    if isinstance(part, (TextPart, ReasoningPart)):
        return f"(reasoning) {part.text}" if isinstance(part, ReasoningPart) else part.text
    if isinstance(part, ToolCallPart):
        return f"{part.name}({json.dumps(part.arguments, ensure_ascii=False)})"
    if isinstance(part, ToolResultPart):
        told = f"{part.name} -> {part.exception or ''}{part.output}"
        return "\n".join([told, *map(attachment_line, part.attachments)])
    if isinstance(part, AttachmentPart) and part.attachment:
        return attachment_line(part.attachment)
    return f"({type(part).__name__})"


def logged_json(compaction: LoggedCompaction) -> dict[str, Any]:
    """A logged compaction as `list --json` and `show --json` print it."""
    data = dataclasses.asdict(compaction)
    ids = {"id": data.pop("conversation_id"), "source_id": data.pop("source_conversation_id")}
    return ids | data


def show_pins(pins: Sequence[Mapping[str, Any]]) -> None:
    """What `llm compact pins` prints: a pin a line."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for pin in pins:
        line = f"{pin['id']}  {_minute(pin['datetime_utc'])}  {_one_line(pin['text'])}"
        _output(line[:width])
    if not pins:
        click.echo("Nothing is pinned.", err=True)


def show_pinned(pins: Sequence[Pinned]) -> None:
    """The closing lines of `llm compact pin`."""
    for pin in pins:
        told = "Pinned" if pin.is_new else "Already pinned"
        click.echo(f"{told} as {pin.id} in conversation {pin.conversation_id}", err=True)


def _minute(datetime_utc: str) -> str:
    return datetime_utc[:16].replace("T", " ")


def _one_line(text: str) -> str:
    """Without what a terminal would take for an order."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _counted_by(plan: Plan) -> str:
    """Who counted: the provider as far as it reported, and what is on this disk."""
    name = counter().name
    return name if plan.calibration.newest is None else f"provider and {name}"


def _parts(record: Record) -> str:
    c = record
    if c.summarizer == PRUNE_TOOLS:
        return f"tool output shortened in {_count(c.messages_summarized, 'message')}"
    # A cut inside the only exchange summarizes messages, and no whole exchange.
    if not c.exchanges_summarized:
        summarized, kept = _count(c.messages_summarized, "message"), f"{c.messages_kept:,}"
    else:
        summarized, kept = _count(c.exchanges_summarized, "exchange"), f"{c.exchanges_kept:,}"
    return f"{summarized} summarized, {kept} kept"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
