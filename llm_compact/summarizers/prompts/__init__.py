"""The prompt files, and how they are filled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

SMALL_WINDOW = 4_000
"Below so many tokens a model gets the prompts of few words."


@dataclass(frozen=True)
class Prompts:
    """A prompt file: its version is kept with each compaction."""

    version: str
    boundary_bytes: int
    system: str
    whole: str
    part: str
    merge: str
    form: str
    previous: str
    focus: str
    shorten: str
    translate: str
    shape: str = ""
    shape_json: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)
    "What goes into each section, by the field of the summary."
    agent: str = ""
    chat: str = ""


@dataclass(frozen=True)
class Notes:
    """What stands behind the transcript in a template of the user's own."""

    part: str
    merge: str
    shorten: str
    translate: str
    focus: str
    whole: str = ""


@dataclass(frozen=True)
class BehindPrompts:
    """What a model is told behind the conversation itself."""

    version: str
    request: str
    previous: str
    transcript: str
    template: str


@dataclass(frozen=True)
class CheckPrompts:
    """What a model is told that looks for facts of the old conversation in the new one."""

    system: str
    prompt: str


def prompts_for(window: int | None) -> Prompts:
    """The prompts for a context window of so many tokens."""
    return _load("small" if window and window < SMALL_WINDOW else "summarize")


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace each $name in one pass, so that a "$name" inside a value stays what it is."""
    return re.sub(r"\$(\w+)", lambda match: values.get(match[1], match[0]), template).strip()


@cache
def notes() -> Notes:
    """What each kind of call needs besides the words of a template."""
    return Notes(**_read("notes"))


@cache
def behind_prompts() -> BehindPrompts:
    """The prompts of a request that follows the conversation, whatever the window."""
    return BehindPrompts(**_read("behind"))


@cache
def check_prompts() -> CheckPrompts:
    """The prompts of a check, whatever the window."""
    return CheckPrompts(**_read("check"))


@cache
def _load(name: str) -> Prompts:
    return Prompts(**_read(name))


def _read(name: str) -> dict[str, Any]:
    path = files("llm_compact").joinpath(f"summarizers/prompts/{name}.yaml")
    read: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return read
