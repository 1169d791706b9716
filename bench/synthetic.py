"""Conversations to measure on: what a coding agent's log looks like, made up, and always the same.

Some 230 tokens a message, and about as many paths, names, numbers and ids in them, old ones and
new ones, as in the logs of real agents.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM = (
    "You are a careful engineer. Read before you write, run the tests, and say what you changed."
)

# fmt: off
_SYLLABLES = [
    "an", "ber", "cor", "dal", "em", "fi", "gra", "hol", "in", "jun", "kel", "lo", "mar", "nes",
    "or", "pla", "qui", "ran", "sol", "tor", "un", "ver", "wes", "ya", "zon",
]
_NOUNS = [
    "time zone", "parser", "index", "migration", "cache", "session", "upload", "invoice", "search",
    "retry queue", "rate limit", "export", "login", "report", "scheduler", "webhook",
]
# fmt: on
_ASKED = (
    "The {noun} in {path} fails since {version}. Can you find out why? I saw it in {ticket}.",
    "Please never touch {path} again without asking me, and go on with the {noun}.",
    "I have no idea how that happened, but it would be good to know before we ship the {noun}.",
    "What does {name} do when there is nothing in the list? A customer waited {number} ms for it.",
    "Rename {name} to {other} in {path}, and tell me what else calls it.",
    "Good. Now the {noun}: we keep {name}, because the old one lost {number} rows last time.",
)
_SAID = (
    "I looked at {path}: {name} reads the {noun} before anybody has had a chance to write it.",
    "The root cause is in {name}. It compares two values of different types, so it is never true.",
    "We decided to keep {name}, because the {noun} needs {number} ms less that way.",
    "Fixed in {path}. The new test passes, and so do all the others that go through the {noun}.",
    "Let me check the {noun} next, since the same mistake could easily have been made there too.",
    "There is one thing left that I would not do without asking you: the {noun} has two owners.",
    "{ticket} is done: {name} was renamed, and its callers in {path} were updated.",
)
_OUTPUT = (
    "{path}:{number}:    {name} = make(limit={number}, timeout=None)",
    "    # Nobody may rely on the order in which the {noun} hands them out, so we sort once more.",
    "    if {name} is None or not len(items):",
    "        return [item for item in items if item.kind == kind and not item.is_done]",
    '        raise ValueError(f"no {noun} was found where there should be one")',
    "    def {name}(self, items, *, limit=None, reverse=False):",
    '        """Return the {noun} of a user, the newest first, without those that were deleted."""',
    '  File "{path}", line {number}, in {name}',
    "tests/test_{noun}.py::test_{name} PASSED",
    '{{"id": "{uuid}", "name": "{name}", "size": {number}, "ok": true, "parent": null}}',
    "-rw-r--r-- 1 build build {number} Jan 1{digit} 1{digit}:2{digit} {path}",
    "[INFO] {noun}: all of them done, {name} is next",
    "",
)
_TOOLS = ("read_file", "search", "run_tests", "edit_file")


@dataclass(frozen=True)
class Line:
    """A message in nobody's format. An assistant's has text or one call, a tool's its result."""

    role: str
    text: str
    call: str = ""
    "Id of the tool call that this message makes, or answers."
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def texts(self) -> list[str]:
        """All that a model is sent of it."""
        return [self.text, json.dumps(self.arguments)] if self.arguments else [self.text]


class _Project:
    """Draws the words of a conversation: mostly names that were there before, as in real work."""

    def __init__(self) -> None:
        self.draw = random.Random(20_250_101)
        self._names = [f"{self._word()}_{self._word()}" for _ in range(400)]
        self._paths = [f"src/{self._word()}/{self._word()}.py" for _ in range(120)]

    def text(self, patterns: Sequence[str], count: int, between: str = " ") -> str:
        return between.join(
            self.draw.choice(patterns).format_map(self.values()) for _ in range(count)
        )

    def values(self) -> dict[str, str]:
        draw = self.draw
        uuid = f"{draw.getrandbits(128):032x}"
        return {
            "noun": draw.choice(_NOUNS),
            "name": self._name(),
            "other": self._name(),
            "path": draw.choice(self._paths),
            "number": str(int(draw.paretovariate(0.8))),
            "digit": str(draw.randrange(10)),
            "version": f"{draw.randrange(4)}.{draw.randrange(9)}.{draw.randrange(5)}",
            "ticket": f"TIDE-{draw.randrange(500)}",
            "uuid": "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:])),
        }

    def _name(self) -> str:
        is_new = self.draw.random() < 0.1
        return f"{self._word()}_{self._word()}" if is_new else self.draw.choice(self._names)

    def _word(self) -> str:
        return "".join(self.draw.choices(_SYLLABLES, k=self.draw.randint(2, 3)))


def conversation(messages: int) -> Iterator[Line]:
    """An even number of messages: requests, up to nine calls and results each, answers."""
    project = _Project()
    draw = project.draw
    calls = 0
    while messages > 0:
        rounds = min(draw.randint(2, 9), (messages - 2) // 2)
        messages -= 2 + 2 * rounds
        yield Line("user", project.text(_ASKED, draw.randint(1, 3)))
        for _ in range(rounds):
            calls += 1
            tool = draw.choice(_TOOLS)
            yield Line("assistant", "", f"call_{calls}", tool, _arguments(project, tool))
            # A few lines mostly, some hundreds at times.
            output = project.text(_OUTPUT, int(draw.lognormvariate(2.5, 1)) + 1, "\n")
            yield Line("tool", output, f"call_{calls}", tool)
        yield Line("assistant", project.text(_SAID, draw.randint(2, 6)))


def _arguments(project: _Project, tool: str) -> dict[str, Any]:
    values, draw = project.values(), project.draw
    if tool == "edit_file":
        old, new = (project.text(_OUTPUT, draw.randint(2, 8), "\n") for _ in range(2))
        return {"path": values["path"], "old": old, "new": new}
    if tool == "run_tests":
        return {"command": f"pytest -q {values['path']}", "timeout": draw.randrange(10, 600)}
    return {"path": values["path"], "query": values["name"]}
