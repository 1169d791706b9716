"""How large the next request of a conversation is, counted as it grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from llm.parts import Message

from .tokens import UNKNOWN, Calibration, Reported, calibrate, message_tokens


@dataclass
class Meter:
    """Counts each message of a conversation once, and trusts what its provider has counted."""

    calibration: Calibration = UNKNOWN
    _reported: list[Reported] = field(default_factory=list)
    "What the provider counted, oldest first."
    _is_learned: bool = True
    _sizes: list[int] = field(default_factory=list)
    _total: int = 0
    "Their sum, so that a check does not cost the whole history."
    _last: Message | None = None
    "The message that the last of the sizes belongs to."

    def tokens(self, messages: Sequence[Message]) -> int:
        """The tokens of a request with these messages."""
        self._count(messages)
        if not self._is_learned:
            self.calibration = calibrate(self._sizes, self._reported, self.calibration)
            self._is_learned = True
        newest = self.calibration.newest
        if newest is None:
            return self.calibration.overhead + self.calibration.tokens(self._total)
        since = sum(self._sizes[newest.messages :])
        return newest.tokens + self.calibration.tokens(since)

    def report(self, reported: Iterable[Reported]) -> None:
        """Take in what the provider counted of the conversation that is measured next."""
        self._reported += reported
        self._is_learned = False

    def restart(self) -> None:
        """Forget the messages and what was reported of them, but not how the provider counts."""
        self._sizes, self._total, self._last = [], 0, None
        self._reported, self._is_learned = [], True
        self.calibration = replace(self.calibration, newest=None)

    def _count(self, messages: Sequence[Message]) -> None:
        counted = len(self._sizes)
        if counted and not self._has_grown_to(messages):
            self.restart()
            counted = 0
        new = [message_tokens(message) for message in messages[counted:]]
        self._sizes += new
        self._total += sum(new)
        self._last = messages[-1] if messages else None

    def _has_grown_to(self, messages: Sequence[Message]) -> bool:
        """Whether these are the counted messages and more: the last of them tells of all."""
        counted = len(self._sizes)
        if counted > len(messages):
            return False
        here = messages[counted - 1]
        return here is self._last or here == self._last
