"""An llm model as summarizer: one call where the head fits its window, else many, then merges."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import llm
import pydantic
from llm.parts import ToolCallPart

from ..check import check_end, check_language, is_in_language, summary_text
from ..errors import LARGER_WINDOW, OTHER_MODEL, SummarizerError, UnfitAnswer
from ..language import words
from ..layers import with_layers
from ..overflow import Overflow
from ..prefix import Prefix
from ..sections import (
    HEADINGS,
    Summary,
    UnreadableAnswer,
    read_summary,
    rendered,
    schema,
    with_checked_rules,
    without_planted_sections,
)
from ..summary import Answer, Head, Sent, Usage, Watch, record_line, without_record_line
from ..tokens import MESSAGE_TOKENS, count_text
from ..transcript import Piece, chunks_of, new_boundary, pieces_of, transcript
from ..windows import context_window
from . import unknown_model
from .call import ContextOverflow, ask, ask_behind
from .prompts import SMALL_WINDOW, Prompts, behind_prompts, fill, notes, prompts_for

SMALLEST_CHUNK = 64
"Tokens. A window that holds less than this besides the instructions is of no use."
WORDS_PER_TOKEN = 0.7
SHARE_OF_WINDOW = 0.6
"How much of the window the messages may take. Estimates are off, and the answer needs room."

AGENT_SHARE = 0.3
"From so many tool calls for each message of the assistant on, a conversation is an agent's run."

_SCHEMA_ERROR = re.compile(r"schema|response_format|json", re.IGNORECASE)


@dataclass(frozen=True)
class ModelSummarizer:
    """Summarizes with a model of llm's, sync or async, of any context window."""

    model: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    window: int | None = None
    "Tokens. None where nobody knows: then all is sent at once until the model complains."
    jobs: int = 1
    template: llm.Template | None = None
    "Used instead of our prompts."
    prefix: Prefix | None = None
    "Present if the conversation is to be sent as it was, because its provider has it in a cache."

    @property
    def name(self) -> str:
        model_id: str = self.model.model_id
        return model_id

    @property
    def prompt_version(self) -> str:
        version = prompts_for(self.window).version
        return f"template {self.template.name}" if self.template else version

    def summarize(self, head: Head, watch: Watch) -> Answer:
        """Every message reaches the model, in as many calls as its window asks for.

        With a `prefix` the conversation is sent as it was, in one call. Where that comes to
        nothing, the watch is told why, and a transcript is sent.

        Raises `SummarizerError` when the model raises, when its answer to a part is none, when
        it can't make the head smaller, and when the window is too small for anything.
        """
        return _Run(self, head, watch).summary()


def planned_calls(head: Head, window: int | None, prefix: Prefix | None = None) -> int:
    """About how many calls a summary takes; 1 where the window (tokens) is not known."""
    form = _Form(head, window)
    if prefix and head.sent and not form.obstacle(head.sent, prefix):
        return 1
    return _planned_calls(form, pieces_of(head.messages))


def _planned_calls(form: _Form, pieces: Sequence[Piece]) -> int:
    capacity = form.capacity()
    if capacity is None:
        return 1
    total = _size(pieces, form.head.previous)
    if total <= capacity:
        return 1
    calls = 0
    while total > capacity:
        chunks = math.ceil(total / capacity)
        calls += chunks
        smaller = chunks * form.room()
        if smaller >= total:
            break
        total = smaller
    return calls + 1


def model_summarizer(
    name: str,
    *,
    options: Sequence[tuple[str, str]] = (),
    key: str | None = None,
    window: int | None = None,
    jobs: int = 1,
    template: llm.Template | None = None,
    prefix: Prefix | None = None,
) -> ModelSummarizer:
    """Raises `SummarizerError` for an unknown model or an option that the model does not have."""
    from llm.cli import get_model_options

    try:
        model = llm.get_model(name)
    except llm.UnknownModelError:
        raise unknown_model(name) from None
    asked = {**((template and template.options) or {}), **dict(options)}
    try:
        given = {name: value for name, value in model.Options(**asked) if value is not None}
    except pydantic.ValidationError as ex:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in ex.errors())
        raise SummarizerError(f"Options for {name}: {wrong}") from ex
    defaults = get_model_options(model.model_id)
    known = context_window(model.model_id, explicit=window)
    if prefix:
        prefix = replace(prefix, options={**defaults, **prefix.options, **given})
    return ModelSummarizer(model, {**defaults, **given}, key, known, jobs, template, prefix)


@dataclass
class _Form:
    """The words around the messages, and the room that they leave."""

    head: Head
    window: int | None
    template: llm.Template | None = None
    supports_schema: bool = False

    @property
    def prompts(self) -> Prompts:
        return prompts_for(self.window)

    def capacity(self) -> int | None:
        """How many tokens of messages a call may hold; None for any number."""
        if self.window is None:
            return None
        system, prompt = self.fill("whole", [], previous=None)
        instructions = count_text(system) + count_text(prompt)
        room = min(int(self.window * SHARE_OF_WINDOW), self.window - instructions - self.room())
        if room < SMALLEST_CHUNK:
            raise SummarizerError(
                f"has a window of {self.window:,} tokens, and the instructions alone take "
                f"{instructions:,}. {LARGER_WINDOW}"
            )
        return room

    def obstacle(self, sent: Sent, prefix: Prefix) -> str | None:
        """Why the conversation can't be sent as it was; None where it can."""
        if prefix.run_by_provider:
            return f"would run {', '.join(prefix.run_by_provider)} by itself"
        if self.window is None:
            return None
        instructions = count_text(self.request()) + MESSAGE_TOKENS
        needed = sent.tokens + prefix.tokens + instructions + self.room()
        if needed <= self.window:
            return None
        return f"has a window of {self.window:,} tokens, and {needed:,} would be needed"

    def room(self) -> int:
        """How long a record may be: a quarter of the window at most, so that two can be merged."""
        return min(self.head.room, self.window // 4) if self.window else self.head.room

    @property
    def takes_schema(self) -> bool:
        """Whether the summary is asked for as JSON. A schema is too much for a small window."""
        is_small = self.window is not None and self.window < SMALL_WINDOW
        return self.supports_schema and not (self.template or is_small)

    def schema(self) -> dict[str, Any]:
        return schema(self.prompts.sections)

    @cached_property
    def is_agent_run(self) -> bool:
        """Whether tools do much of the work."""
        messages = self.head.messages
        calls = sum(isinstance(part, ToolCallPart) for m in messages for part in m.parts)
        return calls > AGENT_SHARE * sum(message.role == "assistant" for message in messages)

    def fill(
        self,
        kind: str,
        pieces: Sequence[Piece],
        *,
        previous: str | None,
        part: str = "",
        as_json: bool = False,
    ) -> tuple[str, str]:
        """The system prompt and the prompt."""
        head, prompts = self.head, self.prompts
        texts = [text for piece in pieces for text in (piece.label, piece.text)]
        size = prompts.boundary_bytes
        boundary = new_boundary(previous or "", head.focus or "", *texts, size=size)
        values = {**self._values(), "boundary": boundary, "part": part}
        shown = transcript(pieces, boundary)
        earlier = ""
        if previous:
            earlier = fill(prompts.previous, {**values, "summary": previous})
        if self.template:
            note = fill(getattr(notes(), kind), values)
            told = (text for text in (earlier, shown, note, self._focus(notes().focus)) if text)
            return _from_template(self.template, "\n\n".join(told))
        form = self._form(values, as_json=as_json)
        values |= {"previous": earlier, "transcript": shown, "form": form}
        return fill(prompts.system, values), fill(getattr(prompts, kind), values)

    def request(self) -> str:
        """What is asked for behind the conversation itself."""
        behind = behind_prompts()
        if self.template:
            told = [*_from_template(self.template, behind.transcript), self._focus(notes().focus)]
            text = "\n\n".join(text for text in told if text)
            return fill(behind.template, {"text": text})
        form = self._form(self._values(), as_json=False)
        previous = behind.previous if self.head.previous else ""
        return fill(behind.request, {"previous": previous.strip(), "form": form})

    def _values(self) -> dict[str, str]:
        """What is filled in whatever the call."""
        head, prompts = self.head, self.prompts
        return {
            "language": words(head.language)["name"],
            "words": str(max(1, round(self.room() * WORDS_PER_TOKEN))),
            "kind": (prompts.agent if self.is_agent_run else prompts.chat).strip(),
            "sections": _outline(prompts.sections, head.language),
        }

    def _form(self, values: Mapping[str, str], *, as_json: bool) -> str:
        prompts = self.prompts
        shape = fill(prompts.shape_json if as_json else prompts.shape, values)
        return fill(prompts.form, {**values, "shape": shape, "focus": self._focus(prompts.focus)})

    def _focus(self, template: str) -> str:
        return fill(template, {"text": self.head.focus}) if self.head.focus else ""


def _outline(sections: Mapping[str, str], language: str) -> str:
    """The headings in a language, each with what belongs there."""
    said = words(language)
    told = (
        f"## {said[HEADINGS[name]]}\n{told}" for name, told in sections.items() if name in HEADINGS
    )
    return "\n".join(told)


def _from_template(template: llm.Template, shown: str) -> tuple[str, str]:
    try:
        prompt, system = template.evaluate(shown, {})
    except (llm.Template.MissingVariables, ValueError) as ex:
        raise SummarizerError(f"can't use template {template.name!r}: {ex}") from ex
    return system or "", prompt or ""


class _Run:
    """One summary in the making: what it has used so far, and what it learned of the window."""

    def __init__(self, summarizer: ModelSummarizer, head: Head, watch: Watch) -> None:
        self.summarizer = summarizer
        self.head = head
        self.watch = watch
        supports_schema = bool(getattr(summarizer.model, "supports_schema", False))
        self.form = _Form(head, summarizer.window, summarizer.template, supports_schema)
        self.earlier = without_record_line(head.previous or "") or None
        self.capacity = self.form.capacity()
        self.usages: list[Usage] = []
        # Made once, because they keep their sizes: to count them is what takes long here.
        before = max(0, len(head.originals) - len(head.messages))
        self.pieces = pieces_of(head.messages, before=before)
        self.planned = _planned_calls(_Form(head, summarizer.window), self.pieces)
        self.most_calls = 3 * self.planned + 20

    def summary(self) -> Answer:
        return self._from_conversation() or self._from_transcript()

    def _from_conversation(self) -> Answer | None:
        """What comes of the conversation as it was sent; None where it takes a transcript."""
        sent, prefix = self.head.sent, self.summarizer.prefix
        if not (sent and prefix):
            return None
        reason = self.form.obstacle(sent, prefix)
        if not reason:
            try:
                answer = self._accepted(self._read(self._asked_behind(sent, prefix)))
                version = f"{self.summarizer.prompt_version}, {behind_prompts().version}"
                return replace(answer, prompt_version=version)
            except SummarizerError as ex:
                reason = str(ex)
                if isinstance(ex, ContextOverflow):
                    self._use_window(ex.overflow.window)
        self.watch.note(
            "Summarizing from a transcript instead of what the provider may have in its cache, "
            f"because {self.summarizer.name} {reason}"
        )
        return None

    def _asked_behind(self, sent: Sent, prefix: Prefix) -> Answer:
        summarizer, request = self.summarizer, self.form.request()
        # It counts, whatever comes of it.
        self.usages.append(Usage())
        answer = ask_behind(summarizer.model, sent.messages, prefix, request, key=summarizer.key)
        self.usages[-1] = answer.usage
        if self.form.window:
            size = sent.tokens + count_text(request) + count_text(answer.text)
            check_end(answer, size, self.form.window)
        self.watch.progress(len(self.usages), self.planned)
        return answer

    def _use_window(self, window: int | None) -> None:
        """Go by a window that was named before anything was sent in parts."""
        if window:
            self.form = replace(self.form, window=window)
            self.capacity = self.form.capacity()
            self.planned = len(self.usages) + _planned_calls(self.form, self.pieces)
            self.most_calls = 3 * self.planned + 20

    def _from_transcript(self) -> Answer:
        pieces, kind, previous = self.pieces, "whole", self.earlier
        while True:
            # Sizes are counted only where they are needed: a head can be millions of characters.
            if self.capacity is None or _size(pieces, previous) <= self.capacity:
                try:
                    return self._final(kind, pieces, previous)
                except ContextOverflow as ex:
                    self._learn(ex.overflow, _size(pieces, previous))
            size = _size(pieces, previous)
            records = self._records(pieces, kind)
            if previous:
                records.insert(0, previous)
            pieces = [
                Piece(f"record {number} of {len(records)}", record)
                for number, record in enumerate(records, 1)
            ]
            kind, previous = "merge", None
            if _size(pieces) > 0.9 * size:
                raise SummarizerError(
                    f"could not make its {len(records):,} partial summaries any smaller. "
                    f"{OTHER_MODEL}"
                )

    def _final(self, kind: str, pieces: Sequence[Piece], previous: str | None) -> Answer:
        head = self.head
        # What may have to be shortened is not shown before it is accepted.
        is_bound = head.most is not None
        watch = Watch() if is_bound else _FirstLine(self.watch, record_line(head))
        return self._accepted(self._written(kind, pieces, previous, watch))

    def _accepted(self, answer: Answer) -> Answer:
        """The answer in the right language and length, asked for once more where it is not."""
        head = self.head
        if not is_in_language(answer.text, head.language):
            answer = self._written("translate", [Piece("record", answer.text)], None, Watch())
        if self._is_too_long(answer.text):
            answer = self._written("shorten", [Piece("record", answer.text)], None, Watch())
        check_language(answer.text, head.language)
        return replace(answer, usage=_total(self.usages))

    def _written(
        self, kind: str, pieces: Sequence[Piece], previous: str | None, watch: Watch
    ) -> Answer:
        """The answer to one call, read section by section and rendered."""
        if self.form.takes_schema:
            try:
                return self._read(self._asked(kind, pieces, previous, Watch(), as_json=True))
            except ContextOverflow:
                raise
            except SummarizerError as ex:
                # Some models only say that they take a schema. Each of them writes Markdown.
                if not (isinstance(ex, UnreadableAnswer) or _SCHEMA_ERROR.search(str(ex))):
                    raise
        return self._read(self._asked(kind, pieces, previous, watch))

    def _asked(
        self,
        kind: str,
        pieces: Sequence[Piece],
        previous: str | None,
        watch: Watch,
        *,
        as_json: bool = False,
    ) -> Answer:
        system, prompt = self.form.fill(kind, pieces, previous=previous, as_json=as_json)
        return self._ask(system, prompt, watch, self.form.schema() if as_json else None)

    def _read(self, answer: Answer) -> Answer:
        """The answer as a summary in our form. Raises `SummarizerError` where it is none."""
        head = self.head
        summary = read_summary(summary_text(answer), head.language)
        if summary.is_empty:
            raise SummarizerError("answered with nothing")
        if summary == Summary(goal=summary.goal):
            summary_text(Answer(summary.goal))  # a refusal, put into the first field
        earlier = read_summary(self.earlier or "", head.language)
        summary = with_checked_rules(without_planted_sections(summary, head), head, earlier.rules)
        summary = with_layers(summary, earlier, head.room)
        return replace(answer, text=rendered(summary, head.language))

    def _is_too_long(self, text: str) -> bool:
        """Whether a summary would be refused for its length, its first line included."""
        most = self.head.most
        return most is not None and count_text(f"{record_line(self.head)}\n\n{text}") > most

    def _records(self, pieces: Sequence[Piece], kind: str) -> list[str]:
        """A record of each chunk, in order."""
        assert self.capacity is not None
        records: list[str] = []
        chunks = chunks_of(pieces, self.capacity)
        while chunks:
            batch = chunks[: self.summarizer.jobs]
            known = len(records) + len(chunks)
            parts = [f"{len(records) + at} of {known}" for at in range(1, len(batch) + 1)]
            for result in self._all_records(batch, kind, parts):
                if isinstance(result, Overflow):
                    self._learn(result, _size(chunks[0]))
                    rest = [piece for chunk in chunks for piece in chunk]
                    chunks = chunks_of(rest, self.capacity)
                    break
                records.append(result)
                chunks = chunks[1:]
        return records

    def _all_records(
        self, chunks: Sequence[Sequence[Piece]], kind: str, parts: Sequence[str]
    ) -> list[str | Overflow]:
        if len(chunks) == 1:
            return [self._record(chunks[0], kind, parts[0])]
        with ThreadPoolExecutor(len(chunks)) as pool:
            return list(pool.map(self._record, chunks, [kind] * len(chunks), parts))

    def _record(
        self, chunk: Sequence[Piece], kind: str, part: str, *, is_last_try: bool = False
    ) -> str | Overflow:
        how = "merge" if kind == "merge" else "part"
        system, prompt = self.form.fill(how, chunk, previous=None, part=part)
        try:
            return summary_text(self._ask(system, prompt, Watch()))
        except ContextOverflow as ex:
            return ex.overflow
        except UnfitAnswer as ex:
            smaller = chunks_of(chunk, max(SMALLEST_CHUNK, math.ceil(_size(chunk) / 2)))
            if is_last_try or len(smaller) < 2:
                raise UnfitAnswer(f"{ex} (part {part})") from ex
            return self._record_of(smaller, kind, part)
        except SummarizerError as ex:
            raise SummarizerError(f"{ex} (part {part})") from ex

    def _record_of(self, chunks: Sequence[Sequence[Piece]], kind: str, part: str) -> str | Overflow:
        """The records of a part in smaller ones: small models lose their way in a long one."""
        records = []
        for chunk in chunks:
            record = self._record(chunk, kind, part, is_last_try=True)
            if isinstance(record, Overflow):
                return record
            records.append(record)
        return "\n\n".join(records)

    def _ask(
        self, system: str, prompt: str, watch: Watch, schema: Mapping[str, Any] | None = None
    ) -> Answer:
        if len(self.usages) >= self.most_calls:
            raise SummarizerError(f"was given up after {len(self.usages):,} calls")
        try:
            answer = ask(
                self.summarizer.model,
                system,
                prompt,
                options=self.summarizer.options,
                schema=schema,
                key=self.summarizer.key,
                show=watch.text,
            )
        except ContextOverflow:
            self.usages.append(Usage())
            raise
        self.usages.append(answer.usage)
        if self.form.window:
            size = count_text(system) + count_text(prompt) + count_text(answer.text)
            check_end(answer, size, self.form.window)
        self.planned = max(self.planned, len(self.usages))
        self.watch.progress(len(self.usages), self.planned)
        return answer

    def _learn(self, overflow: Overflow, size: int) -> None:
        """Make the chunks smaller after one of `size` tokens did not fit."""
        if overflow.window and overflow.window != self.form.window:
            self.form = replace(self.form, window=overflow.window)
            capacity = self.form.capacity()
            assert capacity is not None
        else:
            capacity = size // 2
        # The window that was named may be counted in tokens that are smaller than ours.
        self.capacity = min(capacity, size * 9 // 10)
        if self.capacity < SMALLEST_CHUNK:
            raise SummarizerError(f"can't take even {size:,} tokens at once. {LARGER_WINDOW}")
        remaining = _size(self.pieces)
        self.planned = len(self.usages) + 2 * math.ceil(remaining / self.capacity) + 1
        self.most_calls = max(self.most_calls, 3 * self.planned + 20)


class _FirstLine(Watch):
    """Tells the first line of the summary in front of what the model writes."""

    def __init__(self, watch: Watch, line: str) -> None:
        self._watch = watch
        self._line = line

    def text(self, text: str) -> None:
        self._watch.text(f"{self._line}\n\n{text}" if self._line else text)
        self._line = ""


def _size(pieces: Sequence[Piece], previous: str | None = None) -> int:
    return sum(piece.tokens for piece in pieces) + count_text(previous or "")


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        _sum(usage.input for usage in usages),
        _sum(usage.output for usage in usages),
        calls=len(usages),
        cached=_sum(usage.cached for usage in usages),
    )


def _sum(reported: Iterable[int | None]) -> int | None:
    known = [number for number in reported if number is not None]
    return sum(known) if known else None
