"""An llm template as the prompt of a summarizer: `$input` is the transcript."""

from __future__ import annotations

import llm

from ..errors import SummarizerError

# A summary is text, written from the transcript alone.
_REFUSED = ("tools", "functions", "schema_object", "fragments", "system_fragments", "attachments")


def load_template(name: str) -> llm.Template:
    """Raises `SummarizerError` for an unknown template, or one that asks for more than a text."""
    from llm.cli import LoadTemplateError
    from llm.cli import load_template as load

    try:
        template: llm.Template = load(name)
    except LoadTemplateError as ex:
        raise SummarizerError(f"Template {name}: {ex}") from ex
    for field in _REFUSED:
        if getattr(template, field, None):
            raise SummarizerError(f"Template {name} has {field}, which a summary can't use")
    if template.prompt and "input" not in template.vars():
        raise SummarizerError(
            f"Template {name} has no $input, so the conversation would not reach the model"
        )
    return template
