"""Compact long conversations in llm: the plugin's hooks, and its public names for Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from llm import hookimpl

if TYPE_CHECKING:
    from llm.models import ModelWithAliases

    from .compaction import Compaction as Compaction
    from .compaction import compact as compact
    from .errors import CompactionError as CompactionError
    from .errors import NothingToCompact as NothingToCompact
    from .policy import auto as auto

_PUBLIC = {
    "Compaction": ".compaction",
    "compact": ".compaction",
    "auto": ".policy",
    "CompactionError": ".errors",
    "NothingToCompact": ".errors",
}
__all__ = ["Compaction", "CompactionError", "NothingToCompact", "auto", "compact"]


@hookimpl
def register_commands(cli: click.Group) -> None:
    from .cli import compact
    from .options import add_options

    cli.add_command(compact)
    add_options(cli)


@hookimpl(trylast=True)
def register_models(model_aliases: list[ModelWithAliases]) -> None:
    # Last, because only then are all models registered.
    from .hook import wrap_models

    wrap_models(model_aliases)


def __getattr__(name: str) -> Any:
    # Every `llm` command imports this module: the pipeline is loaded when somebody asks for it.
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
