"""Where the head ends: pure functions from messages and their sizes to a cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from llm.parts import Message

from .conversation import answered_calls, local_calls, requests
from .errors import CompactionError, ConversationError, NothingToCompact
from .tokens import Size

DEFAULT_EXCHANGES = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Cut:
    """A place where a conversation can be parted without breaking it."""

    position: int
    "The tail starts with the message of this index."
    request: int | None = None
    "Index of the user message that is kept in front of a tail which starts inside its exchange."

    def head(self, body: Sequence[T]) -> list[T]:
        """What the summary stands for, of the messages or of something told about each."""
        return [m for index, m in enumerate(body[: self.position]) if index != self.request]

    def tail(self, body: Sequence[T]) -> list[T]:
        """What is kept."""
        first = [] if self.request is None else [body[self.request]]
        return [*first, *body[self.position :]]


@dataclass(frozen=True)
class Allowance:
    """What a tail may weigh, so that the next compaction is far."""

    weights: Sequence[int]
    "What each message of the body weighs, in whatever the limit is about: tokens, exchanges..."
    aim: int
    "What the tail should weigh, where nobody says how much is to be kept."
    most: int
    "What it may weigh, whatever is to be kept."


def cut_points(body: Sequence[Message]) -> list[Cut]:
    """Every cut that leaves a valid tail, from the longest tail to the shortest.

    A tail starts with an exchange, or with a round behind the user message of its exchange, and
    no tool result in it belongs to a call in the head. So the newest user request is in each tail.
    """
    starts = set(requests(body))
    parted = _between_calls_and_results(body)
    points: list[Cut] = []
    request = 0 if 0 in starts else None
    for index in range(1, len(body)):
        if index in starts:
            request = index
        if parted[index] or request is None:
            continue
        if index == request:
            points.append(Cut(index))
        elif _is_round_start(body, index, request):
            points.append(Cut(index, request))
    return points


def choose_cut(
    body: Sequence[Message],
    sizes: Sequence[int],
    keep: Size | None,
    window: int = 0,
    allowance: Allowance | None = None,
) -> Cut:
    """Where to cut.

    `sizes` are the tokens of each message in `body`. `keep` is what should stay: whole exchanges
    (`2x`), at least so many messages (`6m`), or at most so many tokens (`8k`) or so much of the
    context window (`20%` of `window` tokens). Without it two exchanges stay, and fewer where they
    are more than half of the tokens, down to the newest request and the last round behind it.
    With an `allowance`, as much stays as it aims at, and `keep` yields to the most that it allows.

    Raises `NothingToCompact` when all of it would be kept, and `ConversationError` when the
    conversation could only be parted between a tool call and its missing result.
    """
    points = cut_points(body)
    if not points:
        raise _no_cut(body)
    if allowance is None:
        return _kept(body, sizes, points, keep, window)
    if keep is None:
        return _longest_within(points, allowance.weights, allowance.aim)
    most = _longest_within(points, allowance.weights, allowance.most)
    try:
        return max(_kept(body, sizes, points, keep, window), most, key=lambda cut: cut.position)
    except NothingToCompact:
        return most


def _kept(
    body: Sequence[Message],
    sizes: Sequence[int],
    points: Sequence[Cut],
    keep: Size | None,
    window: int,
) -> Cut:
    if keep is None:
        return _default_cut(body, sizes, points)
    if keep.unit in ("tokens", "%"):
        limit = keep.value if keep.unit == "tokens" else window * keep.value // 100
        if sum(sizes) <= limit:
            raise NothingToCompact(f"Nothing to compact: --keep {keep} keeps all of it")
        return _longest_within(points, sizes, limit)
    starts = requests(body)
    if keep.unit == "messages":
        latest = len(body) - keep.value
    else:
        latest = starts[-keep.value] if keep.value <= len(starts) else 0
    enough = [cut for cut in points if cut.position <= latest]
    if not enough:
        raise NothingToCompact(
            f"Nothing to compact: --keep {keep} keeps the whole conversation "
            f"(exchanges: {len(starts)}, messages: {len(body)})"
        )
    return enough[-1]


def _default_cut(body: Sequence[Message], sizes: Sequence[int], points: Sequence[Cut]) -> Cut:
    starts = requests(body)
    newest = starts[-1]
    oldest = starts[-DEFAULT_EXCHANGES:][0]
    wanted = [
        cut
        for cut in points
        if cut.request == newest or (cut.request is None and cut.position >= oldest)
    ]
    return _longest_within(wanted or points, sizes, sum(sizes) // 2)


def _longest_within(points: Sequence[Cut], sizes: Sequence[int], limit: int) -> Cut:
    """The cut with the longest tail of at most `limit` tokens, else the one with the shortest."""
    behind = [0] * (len(sizes) + 1)
    for index in range(len(sizes) - 1, -1, -1):
        behind[index] = behind[index + 1] + sizes[index]
    for cut in points:
        request = 0 if cut.request is None else sizes[cut.request]
        if request + behind[cut.position] <= limit:
            return cut
    return points[-1]


def _no_cut(body: Sequence[Message]) -> CompactionError:
    if body and local_calls(body[-1]):
        return ConversationError(
            "The conversation ends in a tool call that has no result yet, and there is nothing "
            "before it to summarize. Let the call finish first"
        )
    if not requests(body):
        return NothingToCompact("Nothing to compact: nothing was asked yet")
    if len(requests(body)) > 1:
        return NothingToCompact(
            "Nothing to compact: every cut would part a tool call from its result"
        )
    return NothingToCompact("Nothing to compact: the conversation is a single exchange")


def _is_round_start(body: Sequence[Message], index: int, request: int) -> bool:
    """Whether the assistant speaks here again, after tools have answered."""
    return body[index].role == "assistant" and (
        body[index - 1].role == "tool" or (body[index - 1].role == "user" and index - 1 != request)
    )


def _between_calls_and_results(body: Sequence[Message]) -> list[bool]:
    """For each index, whether a cut in front of it would part a call from its result."""
    opened, closed = [0] * (len(body) + 1), [0] * (len(body) + 1)
    for answered in answered_calls(body):
        opened[answered.call_index + 1] += 1
        closed[answered.result_index + 1] += 1
    parted, depth = [], 0
    for index in range(len(body)):
        depth += opened[index] - closed[index]
        parted.append(depth > 0)
    return parted
