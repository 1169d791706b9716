"""Automatic compaction: what happens in front of a provider's call while a policy is active.

The same steps serve sync and async models. They wait for a summarizer and for nothing else.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import llm
import sqlite_utils
from llm.parts import Message
from llm.utils import monotonic_ulid

from .background import Steps, Wait, drive, drive_async, in_background
from .compaction import Trigger, draft_compaction, uninterrupted
from .conversation import local_calls
from .errors import (
    AlreadyCompacted,
    CompactionError,
    ConversationError,
    NothingToCompact,
    SettingsError,
    StoreError,
    SummarizerError,
    automatic_advice,
)
from .log import check_writable, create_log, open_log
from .meter import Meter
from .ongoing import Ongoing, fragments_of, name_of, overhead_of
from .overflow import overflow_in
from .placeholder import PRUNE_TOOLS
from .plan import MOST_LEFT, Plan, Wishes, fixed_size, plan_compaction, size_of
from .policy import Policy, Voice
from .prefix import LIMIT_OPTIONS, Prefix, live_prefix
from .prune import draft_pruning
from .settings import remember_window
from .source import Source, read_known, read_live, read_made_by_others, read_reported
from .store import Draft, Stored, store_compaction
from .summarizers import EXTRACTIVE, get_summarizer, planned_calls
from .summarizers.template import load_template
from .summary import Summarizer, Watch
from .tokens import UNKNOWN, Size, reported_usage
from .turns import AnyModel, Call, ChainPrompt, Recalled
from .windows import context_window

T = TypeVar("T")

MOST_FAILURES = 2
"So many failures in a row end it for the process."
ANSWER_SHARE = 20
"A twentieth of the context window at least is left for the answer."
LEAST_SHARE = 4
"A quarter of it is there for the request, however long an answer may be."
HARDER = 0.7
"The share of a request that was too long which is the limit after that."
_COMMAND = "!compact"
_NOTHING: Any = object()

# A model may call other models, and a summarizer may be such a model: what they say is theirs.
_is_inside: ContextVar[bool] = ContextVar("llm_compact_is_inside", default=False)


class Session:
    """A policy at work, and what it has met so far."""

    def __init__(self, policy: Policy, voice: Voice) -> None:
        self.policy, self.voice = policy, voice
        self.is_off = False
        self._failures = 0
        self._ongoing: dict[int, Ongoing] = {}
        self._in_progress: set[int] = set()
        self._windows: dict[str, int | None] = {}
        self._ids: dict[str, str] = {}
        self._first: Any = None
        self._is_unknown_told = False

    def wants(self, call: Call) -> bool:
        """Whether this call belongs to a conversation that the policy is about."""
        # A model that is another one in a thread of its own hands the same response on.
        if _is_inside.get() or id(call.response) in self._in_progress or call.conversation is None:
            return False
        # A stand-in is nobody's conversation.
        if isinstance(call.conversation, Recalled):
            return False
        if self.policy.is_single and not self._is_first(call.conversation):
            return False
        if not getattr(call.model, "supports_conversation", True):
            return False
        # A hidden option of llm-anthropic, with which nothing is said.
        if getattr(call.prompt.options, "count_tokens", None):
            return False
        # An adapter that reads responses would find a command among them that came to nothing.
        is_met = id(call.conversation) in self._ongoing
        wants_all = self.policy.threshold is not None
        return wants_all or is_met or self._command(call.prompt) is not None

    def _is_first(self, conversation: Any) -> bool:
        """Whether a conversation is the first that came by, be there something to do or not."""
        if self._first is None:
            self._first = conversation
        return self._first is conversation

    def generate(self, call: Call) -> Iterator[Any]:
        """The chunks of a sync model's answer."""
        with self._progress(call):
            ready = drive(self._prepared(call))
            if ready is None:
                return
            chunks = _chunks(ready)
            try:
                first = next(chunks, _NOTHING)
            except Exception as ex:
                again = drive(self._after_overflow(ready, ex))
                if again is None:
                    raise
                chunks = _chunks(again)
                first = next(chunks, _NOTHING)
            if first is not _NOTHING:
                yield first
                yield from chunks

    async def generate_async(self, call: Call) -> AsyncIterator[Any]:
        """The chunks of an async model's answer."""
        with self._progress(call):
            ready = await drive_async(self._prepared(call))
            if ready is None:
                return
            chunks = _chunks_async(ready)
            try:
                first = await anext(chunks, _NOTHING)
            except Exception as ex:
                again = await drive_async(self._after_overflow(ready, ex))
                if again is None:
                    raise
                chunks = _chunks_async(again)
                first = await anext(chunks, _NOTHING)
            if first is not _NOTHING:
                yield first
                async for chunk in chunks:
                    yield chunk

    @contextmanager
    def _progress(self, call: Call) -> Iterator[None]:
        self._in_progress.add(id(call.response))
        try:
            yield
        finally:
            self._in_progress.discard(id(call.response))

    def _prepared(self, call: Call) -> Steps[Call | None]:
        """The call that is to be made; None where there is none."""
        ongoing = self._of(call)
        if not call.prompt.tool_results:
            ongoing.is_begun_here = False
        focus = self._command(call.prompt)
        if focus is not None:
            yield from self._obey(call, ongoing, focus)
            return None
        if any(command.fragments or command.attachments for command in ongoing.commands):
            call.response.prompt = _Attached(call.prompt, ongoing.commands)
            call = replace(call, prompt=call.response.prompt)
        ongoing.commands = []
        call.response.done_callbacks.append(self._when_done(call, ongoing))
        limit = self._limit(call, ongoing)
        if limit is None:
            return call
        size = self._size(call.prompt.messages, ongoing, limit)
        if size <= limit.value:
            return call
        is_idle = self.is_off or self._is_stuck(call, ongoing, limit, size)
        if is_idle and self._fits(call, ongoing):
            return call
        steps = self._compacted(call, ongoing, limit, "auto")
        compacted = yield from self._tried(steps, ongoing, "The request is above the threshold")
        ready = compacted or call
        left = self._size(ready.prompt.messages, ongoing, limit)
        if left <= limit.value:
            ongoing.is_full, ongoing.surplus = False, None
        elif compacted:
            self._tell_full(ongoing, "The newest request alone is above the threshold")
            ongoing.surplus = left - self._fixed(ready, ongoing, limit)
        return ready

    def _after_overflow(self, call: Call, ex: Exception) -> Steps[Call | None]:
        """The call once more with less, if it was refused as too long."""
        overflow = overflow_in(str(ex))
        if overflow is None or self.policy.threshold is None:
            return None
        ongoing = self._of(call)
        counted = ongoing.meter.tokens(call.prompt.messages)
        if overflow.window:
            self._windows[call.model.model_id] = overflow.window
            with suppress(SettingsError):
                remember_window(call.model.model_id, overflow.window)
        # Where we count too few, the request is smaller than the window by our count.
        ongoing.ceiling = int(min(counted, overflow.window or counted) * HARDER)
        limit = Size(max(1, ongoing.ceiling), "tokens")
        steps = self._compacted(call, ongoing, limit, "overflow")
        return (yield from self._tried(steps, ongoing, "The model refused the request as too long"))

    def _obey(self, call: Call, ongoing: Ongoing, focus: str) -> Steps[None]:
        """Compact because a person says so. What they typed never reaches a provider."""
        prompt = call.prompt
        command = _Command(prompt)
        call.response.prompt = command
        # It is no turn of the conversation.
        call.response.log_to_db = lambda db: None
        ongoing.commands.append(prompt)
        try:
            steps = self._compacted(replace(call, prompt=command), ongoing, None, "manual", focus)
            yield from steps
        except Exception as ex:
            self.voice.warn(_told(ex))

    def _tried(self, steps: Steps[Call], ongoing: Ongoing, why: str) -> Steps[Call | None]:
        """What comes of an attempt. Whatever goes wrong, the conversation goes on without it."""
        try:
            return (yield from steps)
        except NothingToCompact as ex:
            self._tell_full(ongoing, f"{why}. {ex}")
        except Exception as ex:
            self._count_failure(f"Not compacted. {_told(ex)}")
        return None

    def _is_stuck(self, call: Call, ongoing: Ongoing, limit: Size, size: int) -> bool:
        # A large request stays through all rounds of its tool loop. To summarize each of them by
        # itself would cost a summary a round and help nobody.
        if ongoing.surplus is None:
            return False
        expected = self._fixed(call, ongoing, limit) + ongoing.surplus
        return expected > limit.value and size - expected <= limit.value * (1 - MOST_LEFT)

    def _fixed(self, call: Call, ongoing: Ongoing, limit: Size) -> int:
        return fixed_size(call.prompt.messages, limit.unit, ongoing.meter.calibration)

    def _tell_full(self, ongoing: Ongoing, text: str) -> None:
        if not ongoing.is_full:
            self.voice.warn(text)
        ongoing.is_full = True

    def _count_failure(self, text: str) -> None:
        self._failures += 1
        self.is_off = self._failures >= MOST_FAILURES
        self.voice.warn(text)
        if self._failures == MOST_FAILURES:
            self.voice.warn(
                "Automatic compaction is off from here on. Only where the conversation would not "
                "fit, extractive steps in"
            )

    def _compacted(
        self,
        call: Call,
        ongoing: Ongoing,
        limit: Size | None,
        trigger: Trigger,
        focus: str | None = None,
    ) -> Steps[Call]:
        """The call with a shorter conversation. Raises a `CompactionError`, changing nothing."""
        is_needed = trigger == "overflow" or not self._fits(call, ongoing)
        source = self._source(call, ongoing)
        if limit and (adopted := self._adopted(call, ongoing, limit, source)):
            return adopted
        plan = plan_compaction(
            source,
            Wishes(
                keep=self.policy.keep,
                max_summary=self.policy.max_summary,
                focus=focus or None,
                again=True,
            ),
            limit=limit,
            window=self._window(call.model),
            calibration=ongoing.meter.calibration,
        )
        name = self._summarizer_name(call)
        self._check_log()
        draft = self._pruned(plan, limit, trigger)
        if draft is None:
            draft = yield from self._draft(call, plan, name, trigger, is_needed)
        try:
            stored = self._store(source, draft, again=limit is None)
        except AlreadyCompacted:
            assert limit
            if adopted := self._adopted(call, ongoing, limit, source):
                return adopted
            stored = self._store(source, draft, again=True)
        # Where extractive stood in, the summarizer has failed all the same.
        if name == EXTRACTIVE or draft.record.summarizer not in (EXTRACTIVE, PRUNE_TOOLS):
            self._failures = 0
        ongoing.remember(source, draft)
        ongoing.meter.restart()
        if stored:
            call.conversation.id = stored.conversation_id
            ongoing.is_begun_here = True
        self._replace(call, draft.chain(source))
        self.voice.compacted(source, draft, stored)
        return replace(call, prompt=call.response.prompt)

    def _adopted(self, call: Call, ongoing: Ongoing, limit: Size, source: Source) -> Call | None:
        """The call in what another process made of this very conversation, if that is enough."""
        if not self.policy.is_stored:
            return None
        with self._log() as db:
            made = read_made_by_others(db, source) if db else None
        if made is None:
            return None
        chain = [*made.messages, *source.messages[len(source.messages) - source.pending :]]
        if self._size(chain, ongoing, limit) > limit.value:
            return None
        call.conversation.id = made.id
        self._replace(call, chain)
        self.voice.moved(source.id, made.id)
        return replace(call, prompt=call.response.prompt)

    def _replace(self, call: Call, chain: Sequence[Message]) -> None:
        # The id was taken before, and would sort before the compaction.
        call.response.id = str(monotonic_ulid()).lower()
        call.response.prompt = ChainPrompt(call.prompt, chain)

    def _pruned(self, plan: Plan, limit: Size | None, trigger: Trigger) -> Draft | None:
        """The conversation with its old tool output shortened, where that is enough."""
        # What leaves less than any compaction may leave is far from the limit again.
        if trigger != "auto" or limit is None or limit.unit != "tokens":
            return None
        try:
            draft = draft_pruning(plan, trigger=trigger, is_logged=self.policy.is_stored)
        except NothingToCompact:
            return None
        return draft if draft.record.tokens_after < limit.value * MOST_LEFT else None

    def _draft(
        self, call: Call, plan: Plan, name: str, trigger: Trigger, is_needed: bool
    ) -> Steps[Draft]:
        if self.is_off and is_needed:
            return draft_compaction(plan, get_summarizer(EXTRACTIVE), trigger=trigger)
        try:
            prefix = self._prefix(name, call)
            summarizer = self._summarizer(name, call, prefix)
            self.voice.working(plan, summarizer.name)
            calls = planned_calls(name, plan.head, self._summarizer_window(name, call))
            # A conversation that can't be sent as it was takes a call more.
            seconds = self.policy.timeout * (max(1, calls) + (prefix is not None))
            notes = _Notes()
            future = in_background(lambda: _inside(_drafted, plan, summarizer, notes, trigger))
            try:
                draft: Draft = yield Wait(future, seconds)
            except TimeoutError:
                raise SummarizerError(
                    f"The summarizer {name} did not answer within {_shown(seconds)} seconds"
                ) from None
            finally:
                for text in notes.texts:
                    self.voice.warn(text)
        except SummarizerError as ex:
            if not is_needed or name == EXTRACTIVE:
                raise
            self._count_failure(
                f"{_told(ex).rstrip('.')}. Using extractive, because the conversation would not fit"
            )
            return draft_compaction(plan, get_summarizer(EXTRACTIVE), trigger=trigger)
        return draft

    def _prefix(self, name: str, call: Call) -> Prefix | None:
        if self.policy.reuse_cache and self._is_own(name, call):
            return live_prefix(call.prompt)
        return None

    def _summarizer_name(self, call: Call) -> str:
        template = None if self.policy.summarizer else self._template
        return self.policy.summarizer or (template and template.model) or call.model.model_id

    @cached_property
    def _template(self) -> llm.Template | None:
        return load_template(self.policy.template) if self.policy.template else None

    def _summarizer(self, name: str, call: Call, prefix: Prefix | None) -> Summarizer:
        # The conversation's key is for its own model and for no other.
        key = call.given.get("key") if self._is_own(name, call) else None
        window = self._summarizer_window(name, call)
        template = None if name == EXTRACTIVE else self._template
        return get_summarizer(name, key=key, window=window, template=template, prefix=prefix)

    def _summarizer_window(self, name: str, call: Call) -> int | None:
        return self._window(call.model) if self._is_own(name, call) else None

    def _is_own(self, name: str, call: Call) -> bool:
        """Whether a summarizer is the conversation's own model, by whatever name."""
        if name in (EXTRACTIVE, call.model.model_id):
            return name != EXTRACTIVE
        # To find a model by its alias takes llm a while, because it registers all of them anew.
        if name not in self._ids:
            try:
                self._ids[name] = llm.get_model(name).model_id
            except llm.UnknownModelError:
                self._ids[name] = name
        return self._ids[name] == call.model.model_id

    def _source(self, call: Call, ongoing: Ongoing) -> Source:
        conversation, messages = call.conversation, call.prompt.messages
        with self._log() as db:
            return read_live(
                db,
                conversation.id,
                call.model.model_id,
                messages,
                name=name_of(messages),
                begun_here=ongoing.is_begun_here,
                fragments=fragments_of(conversation, call.prompt),
                originals=ongoing.originals_of(messages),
                pruned=ongoing.pruned,
            )

    @contextmanager
    def _log(self) -> Iterator[sqlite_utils.Database | None]:
        if self.policy.log is None or not self.policy.log.exists():
            yield None
            return
        with open_log(self.policy.log) as db:
            yield db

    def _check_log(self) -> None:
        """Nobody shall pay for a summary that can't be written."""
        if self.policy.is_stored and self.policy.log is not None:
            create_log(self.policy.log)
            with open_log(self.policy.log) as db:
                check_writable(db)

    def _store(self, source: Source, draft: Draft, *, again: bool) -> Stored | None:
        if not self.policy.is_stored or self.policy.log is None:
            return None
        with open_log(self.policy.log) as db, uninterrupted():
            return store_compaction(db, source, draft, again=again)

    def _of(self, call: Call) -> Ongoing:
        conversation = call.conversation
        ongoing = self._ongoing.get(id(conversation))
        if ongoing is None:
            overhead = overhead_of(call.prompt)
            ongoing = Ongoing(Meter(replace(UNKNOWN, overhead=overhead)))
            # To count without the log is less exact, and no reason to leave a prompt unanswered.
            with suppress(StoreError), self._log() as db:
                if db:
                    model_id, messages = call.model.model_id, call.prompt.messages
                    reported = read_reported(db, conversation.id, model_id, messages)
                    known = read_known(db, model_id, messages, reported)
                    if known != UNKNOWN:
                        ongoing.meter.calibration = known
                    ongoing.meter.report(reported)
            self._ongoing[id(conversation)] = ongoing
            weakref.finalize(conversation, self._ongoing.pop, id(conversation), None)
        return ongoing

    def _limit(self, call: Call, ongoing: Ongoing) -> Size | None:
        """Where this conversation has to be compacted, None where nobody can say."""
        threshold = self.policy.threshold
        if threshold is None or threshold.unit in ("messages", "exchanges"):
            return threshold
        window = self._window(call.model)
        tokens = threshold.value
        if threshold.unit == "%":
            if window is None:
                self._tell_unknown(call.model.model_id, threshold)
                return None
            tokens = window * threshold.value // 100
        if window:
            tokens = min(tokens, max(window // LEAST_SHARE, window - _reserve(call.prompt, window)))
        return Size(max(1, min(tokens, ongoing.ceiling or tokens)), "tokens")

    def _tell_unknown(self, model_id: str, threshold: Size) -> None:
        text = (
            f"No context window known for {model_id!r}, so a threshold of {threshold} can't be "
            "counted. Use --auto-threshold 32k (tokens), --window 32k, or llm compact settings set "
            f"window.{model_id} 32k"
        )
        if self.policy.is_required:
            raise ConversationError(text)
        if not self._is_unknown_told:
            self.voice.warn(text)
        self._is_unknown_told = True

    def _window(self, model: AnyModel) -> int | None:
        if model.model_id not in self._windows:
            self._windows[model.model_id] = context_window(
                model.model_id, explicit=self.policy.window
            )
        return self._windows[model.model_id]

    def _fits(self, call: Call, ongoing: Ongoing) -> bool:
        """Whether the window, as far as it is known, holds the request and an answer."""
        window = self._window(call.model)
        tokens = ongoing.meter.tokens(call.prompt.messages)
        return window is None or tokens <= window - _reserve(call.prompt, window)

    def _size(self, messages: Sequence[Message], ongoing: Ongoing, limit: Size) -> int:
        tokens = ongoing.meter.tokens(messages)
        return tokens if limit.unit == "tokens" else size_of(messages, limit.unit)

    def _when_done(self, call: Call, ongoing: Ongoing) -> Callable[[Any], Any]:
        """What llm is to call when the answer is complete."""

        def done(response: Any, answer: Sequence[Message]) -> None:
            messages = response.prompt.messages
            sent = len(messages)
            if response.input_tokens:
                usage = response.input_tokens, response.output_tokens, response.token_details or {}
                ongoing.meter.report([reported_usage(sent, sent + len(answer), *usage)])
            if self.policy.is_chat and not any(map(local_calls, answer)):
                self._tell_left([*messages, *answer], call, ongoing)

        async def done_async(response: Any) -> None:
            done(response, await response.messages())

        if isinstance(call.response, llm.AsyncResponse):
            return done_async
        return lambda response: done(response, response.messages())

    def _tell_left(self, messages: Sequence[Message], call: Call, ongoing: Ongoing) -> None:
        limit = None if self.is_off else self._limit(call, ongoing)
        if limit:
            used = self._size(messages, ongoing, limit) / limit.value
            if used > 0.5:
                self.voice.left(max(0.0, 1 - used))

    def _command(self, prompt: llm.Prompt) -> str | None:
        """The focus of a `!compact`, '' without one; None if it is none."""
        if not self.policy.is_chat:
            return None
        word, *focus = _typed(prompt).split(maxsplit=1) or [""]
        return "".join(focus) if word == _COMMAND else None


class _Command(ChainPrompt):
    """A prompt that was a command, and is not in its chain."""

    def __init__(self, prompt: llm.Prompt) -> None:
        super().__init__(prompt, prompt.messages[:-1])


class _Attached(ChainPrompt):
    """A prompt with what was attached to the commands before it: llm gives that only once."""

    def __init__(self, prompt: llm.Prompt, commands: Sequence[llm.Prompt]) -> None:
        super().__init__(prompt, prompt.messages[:-1])
        prompts = [*commands, prompt]
        self.fragments = [fragment for each in prompts for fragment in each.fragments or []]
        self.attachments = [attachment for each in prompts for attachment in each.attachments or []]
        self.chain.append(llm.user(self.prompt or "", *self.attachments))


def _typed(prompt: llm.Prompt) -> str:
    """What a person typed, without the fragments in front of it."""
    text: str = prompt.prompt or ""
    return text.removeprefix("\n".join(prompt.fragments or [])).strip()


def _told(ex: Exception) -> str:
    if isinstance(ex, CompactionError):
        return automatic_advice(str(ex))
    return f"{type(ex).__name__}: {ex}"


def _shown(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:g}"


def _drafted(plan: Plan, summarizer: Summarizer, watch: Watch, trigger: Trigger) -> Draft:
    return draft_compaction(plan, summarizer, watch=watch, trigger=trigger)


class _Notes(Watch):
    """Keeps what a summarizer in a thread of its own has to tell, until somebody listens."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def _inside(function: Callable[..., T], *arguments: Any) -> T:
    token = _is_inside.set(True)
    try:
        return function(*arguments)
    finally:
        _is_inside.reset(token)


def _chunks(call: Call) -> Iterator[Any]:
    chunks = iter(_inside(call.make))
    while (chunk := _inside(next, chunks, _NOTHING)) is not _NOTHING:
        yield chunk


async def _chunks_async(call: Call) -> AsyncIterator[Any]:
    chunks = _inside(call.make)
    while True:
        token = _is_inside.set(True)
        try:
            chunk = await anext(chunks, _NOTHING)
        finally:
            _is_inside.reset(token)
        if chunk is _NOTHING:
            return
        yield chunk


def _reserve(prompt: llm.Prompt, window: int) -> int:
    """The tokens of a context window that are kept for the answer."""
    limits = [getattr(prompt.options, name, None) for name in LIMIT_OPTIONS]
    return next((limit for limit in limits if isinstance(limit, int)), window // ANSWER_SHARE)
