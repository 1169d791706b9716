"""Summarizers: an llm model, or `extractive`, which needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SummarizerError
from ..summary import Head, Summarizer

if TYPE_CHECKING:
    import llm

    from ..prefix import Prefix

EXTRACTIVE = "extractive"


def get_summarizer(
    name: str,
    *,
    options: Sequence[tuple[str, str]] = (),
    key: str | None = None,
    window: int | None = None,
    jobs: int = 1,
    template: llm.Template | None = None,
    prefix: Prefix | None = None,
) -> Summarizer:
    """The summarizer of this name: a model's id or alias, or `extractive`.

    `window` is the model's context window in tokens, `jobs` how many calls run at the same time.
    With a `prefix` it is sent the conversation as it was sent before, and not a transcript.
    Raises `SummarizerError` for an unknown model, or for what the summarizer does not take.
    """
    if name == EXTRACTIVE:
        from .extractive import Extractive

        if options:
            raise SummarizerError(f"extractive has no option {options[0][0]!r}")
        if template:
            raise SummarizerError("extractive uses no template. Name a model with -m")
        return Extractive()
    from .model import model_summarizer

    return model_summarizer(
        name,
        options=options,
        key=key,
        window=window,
        jobs=jobs,
        template=template,
        prefix=prefix,
    )


def unknown_model(name: str) -> SummarizerError:
    """What is wrong with the name of a summarizer that llm does not know."""
    return SummarizerError(
        f"Unknown model: {name}. See llm models, or use extractive, which needs no model"
    )


def check_summarizer(name: str) -> None:
    """Raises `SummarizerError` for a name that llm does not know."""
    if name == EXTRACTIVE:
        return
    import llm

    try:
        llm.get_model(name)
    except llm.UnknownModelError:
        raise unknown_model(name) from None


def examiner_name(name: str | None, summarizer_name: str) -> str:
    """Who answers. Raises `SummarizerError` where it would be no model."""
    chosen = name or summarizer_name
    if chosen == EXTRACTIVE:
        raise SummarizerError("extractive can't answer questions. Name a model: --check MODEL")
    return chosen


def is_own_model(summarizer: str, model_id: str) -> bool:
    """Whether a summarizer is the conversation's own model, by whatever name."""
    if summarizer in (EXTRACTIVE, model_id):
        return summarizer != EXTRACTIVE
    import llm

    try:
        return bool(llm.get_model(summarizer).model_id == model_id)
    except llm.UnknownModelError:
        return False


def has_same_provider(summarizer: str, model_id: str) -> bool:
    """Whether a summarizer is the conversation's model, or one that its provider runs too.

    What the conversation says is known there already. Models of one plugin have one provider, if
    they have the same address; of a model that is not installed nobody can tell.
    """
    if summarizer in (EXTRACTIVE, model_id):
        return summarizer != EXTRACTIVE
    import llm

    try:
        models = llm.get_model(summarizer), llm.get_model(model_id)
    except llm.UnknownModelError:
        return False
    first, second = ((type(m).__module__, getattr(m, "api_base", None)) for m in models)
    return first == second


def planned_calls(name: str, head: Head, window: int | None, prefix: Prefix | None = None) -> int:
    """About how many calls of a model a summary will take, whether it is installed or not.

    Raises `SummarizerError` where the window holds nothing besides the instructions.
    """
    if name == EXTRACTIVE:
        return 0
    import llm

    from ..windows import context_window
    from .model import planned_calls

    try:
        model_id = llm.get_model(name).model_id
    except llm.UnknownModelError:
        model_id = name
    try:
        return planned_calls(head, context_window(model_id, explicit=window), prefix)
    except SummarizerError as ex:
        raise SummarizerError(f"The summarizer {model_id} {ex}") from ex
