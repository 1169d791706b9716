"""An examination: a model has to tell facts of the head from a draft, or the draft is repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from .compaction import draft_compaction, redrafted
from .conversation import history_of
from .errors import CheckFailed, CompactionError, NothingToCompact, SummarizerError
from .plan import Plan
from .questions import (
    Question,
    check_window,
    draw_questions,
    missing_in,
    with_facts,
    wrong_answers,
)
from .schema import Record
from .store import Draft
from .summarizers import has_same_provider
from .summarizers.model import ModelSummarizer
from .summary import Summarizer, Usage


class Examination:
    """Facts of the head, asked for in the new conversation, which is repaired where one is missing.

    A fact that is not found, and whose sentence is not there, is repaired: first the sentences
    are added, then the tail becomes an exchange or a round longer, then a new summary is made. A
    fact that is not found although its sentence is there says something about the model, and is
    only counted.

    Made before there is a draft: raises `CheckFailed` where not even the tail fits the window of
    the model, so that no summary is paid for.
    """

    draft: Draft

    def __init__(self, plan: Plan, summarizer: Summarizer, examiner: ModelSummarizer) -> None:
        self.plan = plan
        self.summarizer = summarizer
        self.examiner = examiner
        is_trusted = has_same_provider(examiner.name, plan.source.model_id)
        self.secrets = None if is_trusted else plan.head.secrets
        self.questions = draw_questions(plan.head)
        check_window(
            self.questions, [*history_of(plan.source.messages).system, *plan.tail], examiner
        )
        self.usages: list[Usage] = []
        self.repairs: list[str] = []
        self.added: list[Question] = []
        "Those whose sentences were put into the summary."

    def passed(self, draft: Draft) -> Draft:
        """The draft as it may be stored; its record says how many facts were told.

        Raises `CheckFailed` where a fact is still missing, where the model finds nothing at all,
        and where it can't be asked.
        """
        started = monotonic()
        self.draft = draft
        wrong = self._wrong(self.questions)
        if wrong:
            if self._add_facts(self._missing(wrong)):
                self.repairs.append("facts")
            # Asked once more in any case: a model may have overlooked what is there.
            wrong = self._wrong(wrong)
            missing = self._missing(wrong)
            if missing and len(wrong) == len(self.questions) > len(missing):
                raise self._blind()
            if missing and self._lengthen_tail(missing):
                wrong = self._wrong(wrong)
                missing = self._missing(wrong)
            if missing:
                self._summarize_anew(missing)
                wrong = self._wrong(self.questions)
                missing = self._missing(wrong)
            if missing:
                raise self._failed(missing)
        if self.questions and len(wrong) == len(self.questions):
            raise self._blind()
        duration_ms = int((monotonic() - started) * 1_000)
        return self._recorded(len(self.questions) - len(wrong), duration_ms)

    def _wrong(self, questions: Sequence[Question]) -> list[Question]:
        if not questions:
            return []
        chain = self.draft.chain(self.plan.source)
        wrong, usage = wrong_answers(questions, chain, self.examiner, secrets=self.secrets)
        self.usages.append(usage)
        return wrong

    def _missing(self, wrong: Sequence[Question]) -> list[Question]:
        return missing_in(self.draft.chain(self.plan.source), wrong)

    def _add_facts(self, missing: Sequence[Question]) -> bool:
        """Put as many of the sentences into the summary as there is room for."""
        before = self.draft
        for question in missing:
            summary = with_facts(self.draft.summary, [question], self.plan.head)
            draft = redrafted(self.plan, self.draft, summary)
            if draft:
                self.draft = draft
                self.added.append(question)
        return self.draft is not before

    def _lengthen_tail(self, missing: Sequence[Question]) -> bool:
        """Keep one exchange or round more, if a missing sentence is in there."""
        try:
            plan = self.plan.longer()
        except CompactionError:
            return False
        draft = redrafted(plan, self.draft, self.draft.summary)
        if draft is None or len(missing_in(plan.tail, missing)) == len(missing):
            return False
        self.plan, self.draft = plan, draft
        self.repairs.append("tail")
        return True

    def _summarize_anew(self, missing: Sequence[Question]) -> None:
        """One new try, which is told the values that are missing, and not the sentences.

        A sentence could give orders, and the focus is what the summarizer obeys.
        """
        head = self.plan.head
        wanted = f"Keep exactly: {', '.join(question.expected for question in missing)}"
        focus = f"{head.focus}. {wanted}" if head.focus else wanted
        told = replace(self.plan, head=replace(head, focus=focus))
        first = self.draft.record
        self.usages.append(_usage(first))
        try:
            self.draft = draft_compaction(told, self.summarizer)
        except (NothingToCompact, SummarizerError) as ex:
            raise self._failed(missing) from ex
        self.draft = replace(
            self.draft,
            record=replace(
                self.draft.record,
                instructions=first.instructions,
                duration_ms=first.duration_ms,
                datetime_utc=first.datetime_utc,
            ),
        )
        self.repairs.append("summary")
        again, self.added = [*self.added, *missing], []
        self._add_facts(self._missing(again))

    def _recorded(self, right: int, duration_ms: int) -> Draft:
        record = self.draft.record
        usages = [_usage(record), *self.usages]
        return replace(
            self.draft,
            record=replace(
                record,
                input_tokens=_sum([usage.input for usage in usages]),
                output_tokens=_sum([usage.output for usage in usages]),
                cached_tokens=_sum([usage.cached for usage in usages]),
                calls=sum(usage.calls for usage in usages),
                duration_ms=record.duration_ms + duration_ms,
                check_model=self.examiner.name,
                check_asked=len(self.questions),
                check_passed=right,
                check_repairs=",".join(self.repairs),
            ),
        )

    def _failed(self, missing: Sequence[Question]) -> CheckFailed:
        example = missing[0]
        return CheckFailed(
            f"The check with {self.examiner.name} failed: {len(missing)} of "
            f"{len(self.questions)} facts are not in the new conversation, such as "
            f"{example.expected!r} in {example.text!r}. Allow a longer summary with --max-summary, "
            "keep more with --keep, or pin it with --pin"
        )

    def _blind(self) -> CheckFailed:
        return CheckFailed(
            f"The check was not made: {self.examiner.name} found none of "
            f"{len(self.questions)} facts, not even those that stand there word for word. Name "
            "another model with --check"
        )


def _usage(record: Record) -> Usage:
    return Usage(record.input_tokens, record.output_tokens, record.calls, record.cached_tokens)


def _sum(reported: Sequence[int | None]) -> int | None:
    known = [number for number in reported if number is not None]
    return sum(known) if known else None
