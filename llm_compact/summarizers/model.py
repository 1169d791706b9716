"""An llm model as summarizer: one call where the head fits its window, else many, then merges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import llm
import pydantic

from ..check import check_end, summary_text
from ..errors import SummarizerError
from ..language import words
from ..overflow import Overflow
from ..summary import Answer, Head, Usage, Watch
from ..tokens import count_text
from ..transcript import Piece, chunks_of, new_boundary, pieces_of, transcript
from ..windows import context_window
from .call import ContextOverflow, ask
from .prompts import Prompts, fill, prompts_for

SMALLEST_CHUNK = 64
"Tokens. A window that holds less than this besides the instructions is of no use."
WORDS_PER_TOKEN = 0.7
SHARE_OF_WINDOW = 0.6
"How much of the window the messages may take. Estimates are off, and the answer needs room."


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

        Raises `SummarizerError` when the model raises, when its answer to a part is none, when
        it can't make the head smaller, and when the window is too small for anything.
        """
        return _Run(self, head, watch).summary()


def planned_calls(head: Head, window: int | None) -> int:
    """About how many calls a summary takes; 1 where the window (tokens) is not known."""
    return _planned_calls(_Form(head, window), pieces_of(head.messages))


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
) -> ModelSummarizer:
    """Raises `SummarizerError` for an unknown model or an option that the model does not have."""
    from llm.cli import get_model_options

    try:
        model = llm.get_model(name)
    except llm.UnknownModelError:
        raise SummarizerError(
            f"Unknown model: {name}. See llm models, or use -m extractive, which needs no model"
        ) from None
    asked = {**((template and template.options) or {}), **dict(options)}
    try:
        given = {name: value for name, value in model.Options(**asked) if value is not None}
    except pydantic.ValidationError as ex:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in ex.errors())
        raise SummarizerError(f"Options for {name}: {wrong}") from ex
    defaults = get_model_options(model.model_id)
    known = context_window(model.model_id, explicit=window)
    return ModelSummarizer(model, {**defaults, **given}, key, known, jobs, template)


@dataclass
class _Form:
    """The words around the messages, and the room that they leave."""

    head: Head
    window: int | None
    template: llm.Template | None = None

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
                f"has a window of {self.window:,} tokens, and {instructions:,} of them go to the "
                "instructions. Use a model with a larger context window, or -m extractive"
            )
        return room

    def room(self) -> int:
        """How long a record may be: a quarter of the window at most, so that two can be merged."""
        return min(self.head.room, self.window // 4) if self.window else self.head.room

    def fill(
        self,
        kind: str,
        pieces: Sequence[Piece],
        *,
        previous: str | None,
        part: str = "",
    ) -> tuple[str, str]:
        """The system prompt and the prompt."""
        head, prompts = self.head, self.prompts
        texts = [text for piece in pieces for text in (piece.label, piece.text)]
        size = prompts.boundary_bytes
        boundary = new_boundary(previous or "", head.focus or "", *texts, size=size)
        shown = transcript(pieces, boundary)
        values = {
            "boundary": boundary,
            "language": words(head.language)["name"],
            "words": str(max(1, round(self.room() * WORDS_PER_TOKEN))),
            "part": part,
            "focus": fill(prompts.focus, {"text": head.focus}) if head.focus else "",
        }
        earlier = ""
        if previous:
            earlier = fill(prompts.previous, {**values, "summary": previous})
        if self.template:
            return _from_template(self.template, f"{earlier}\n\n{shown}".strip())
        values |= {"previous": earlier, "transcript": shown, "form": fill(prompts.form, values)}
        return fill(prompts.system, values), fill(getattr(prompts, kind), values)


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
        self.form = _Form(head, summarizer.window, summarizer.template)
        self.capacity = self.form.capacity()
        self.usages: list[Usage] = []
        # Made once, because they keep their sizes: to count them is what takes long here.
        self.pieces = pieces_of(head.messages)
        self.planned = _planned_calls(_Form(head, summarizer.window), self.pieces)
        self.most_calls = 3 * self.planned + 20

    def summary(self) -> Answer:
        pieces, kind, previous = self.pieces, "whole", self.head.previous
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
                    f"could not make its {len(records):,} partial summaries any smaller. Use "
                    "another model with -m, or -m extractive"
                )

    def _final(self, kind: str, pieces: Sequence[Piece], previous: str | None) -> Answer:
        system, prompt = self.form.fill(kind, pieces, previous=previous)
        # What may have to be shortened is not shown before it is accepted.
        most = self.head.most
        watch = self.watch if most is None else Watch()
        answer = self._ask(system, prompt, watch)
        if most is not None and count_text(summary_text(answer)) > most:
            record = [Piece("record", summary_text(answer))]
            system, prompt = self.form.fill("shorten", record, previous=None)
            answer = self._ask(system, prompt, watch)
        return replace(answer, usage=_total(self.usages))

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

    def _record(self, chunk: Sequence[Piece], kind: str, part: str) -> str | Overflow:
        how = "merge" if kind == "merge" else "part"
        system, prompt = self.form.fill(how, chunk, previous=None, part=part)
        try:
            return summary_text(self._ask(system, prompt, Watch()))
        except ContextOverflow as ex:
            return ex.overflow
        except SummarizerError as ex:
            raise SummarizerError(f"{ex} (part {part})") from ex

    def _ask(self, system: str, prompt: str, watch: Watch) -> Answer:
        if len(self.usages) >= self.most_calls:
            raise SummarizerError(f"was given up after {len(self.usages):,} calls")
        try:
            answer = ask(
                self.summarizer.model,
                system,
                prompt,
                options=self.summarizer.options,
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
            raise SummarizerError(
                f"can't take even {size:,} tokens at once. Use a model with a larger context "
                "window, or -m extractive"
            )
        remaining = _size(self.pieces)
        self.planned = len(self.usages) + 2 * math.ceil(remaining / self.capacity) + 1
        self.most_calls = max(self.most_calls, 3 * self.planned + 20)


def _size(pieces: Sequence[Piece], previous: str | None = None) -> int:
    return sum(piece.tokens for piece in pieces) + count_text(previous or "")


def _total(usages: Sequence[Usage]) -> Usage:
    inputs = [usage.input for usage in usages if usage.input is not None]
    outputs = [usage.output for usage in usages if usage.output is not None]
    return Usage(
        sum(inputs) if inputs else None, sum(outputs) if outputs else None, calls=len(usages)
    )
