"""Summarizers: an llm model, or `extractive`, which needs none."""

from __future__ import annotations

from collections.abc import Sequence

from ..summary import Summarizer

EXTRACTIVE = "extractive"


def get_summarizer(
    name: str, options: Sequence[tuple[str, str]] = (), key: str | None = None
) -> Summarizer:
    """The summarizer of this name: a model's id or alias, or `extractive`.

    Raises `SummarizerError` for an unknown model, or options that it does not have.
    """
    if name == EXTRACTIVE:
        from .extractive import extractive

        return extractive(options)
    from .model import model_summarizer

    return model_summarizer(name, options, key)
