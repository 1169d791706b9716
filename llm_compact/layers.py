"""The layers of a summary: the recent past in detail, the far past in fewer words each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .sections import Summary
from .summarizers.cues import sentences
from .tokens import count_text

SHARE_OF_FAR = 3
"A third of a summary's room at most tells what the summary before it had told already."
SAME = 0.8
"An item that has so many of its words from the previous summary was told there."

# Goal, rules, decisions and what is open hold, however long ago they were told.
_OVER = ("done", "findings", "errors")


def with_layers(summary: Summary, previous: Summary, room: int) -> Summary:
    """The summary with what the one before it had told in a third of `room` (tokens).

    What is over becomes its first sentence, the oldest first, and is left out where even these
    are too much. The exact values in it are listed all the same.
    """
    told = _terms("\n".join(item for name in _OVER for item in getattr(previous, name)))
    sections = {name: list(getattr(summary, name)) for name in _OVER}
    far = [
        (at / len(items), name, at)
        for name, items in sections.items()
        for at, item in enumerate(items)
        if _was_told(item, told)
    ]
    size = sum(_tokens(sections[name][at]) for _, name, at in far)
    steps: Sequence[Callable[[str], str]] = (_first_sentence, lambda item: "")
    for shorter in steps:
        for _, name, at in sorted(far):
            if size > room // SHARE_OF_FAR:
                before = sections[name][at]
                sections[name][at] = shorter(before)
                size -= _tokens(before) - _tokens(sections[name][at])
    return summary.model_copy(
        update={name: list(filter(None, items)) for name, items in sections.items()}
    )


def _was_told(item: str, told: frozenset[str]) -> bool:
    terms = _terms(item)
    return bool(terms) and len(terms & told) >= SAME * len(terms)


def _terms(text: str) -> frozenset[str]:
    # Scripts without spaces are compared by pairs of letters.
    words = re.findall(r"[\w./-]+", text.casefold())
    return frozenset(
        term
        for word in words
        for term in ([word] if word.isascii() else (word[at : at + 2] for at in range(len(word))))
    )


def _first_sentence(item: str) -> str:
    return next(iter(sentences(item)), item.partition("\n")[0])


def _tokens(item: str) -> int:
    return count_text(f"- {item}\n") if item else 0
