"""What `llm prompt` and `llm chat` take in addition, and the policy that comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import hook

if TYPE_CHECKING:
    from .policy import Policy

# Each `llm` command imports this module, so what a policy needs is imported when there is one.

COMMANDS = ("prompt", "chat")
_THRESHOLD, _MODEL, _KEEP, _WINDOW = "auto_threshold", "compact_model", "compact_keep", "window"


def add_options(cli: click.Group) -> None:
    """Give llm's commands our options, and let their callbacks run under the policy."""
    for name in COMMANDS:
        command = cli.commands.get(name)
        if command is not None and command.callback is not None:
            command.params += added_options()
            command.callback = _under_policy(command.callback, is_chat=name == "chat")


def added_options() -> list[click.Option]:
    """The options, new ones for each command."""
    return [
        click.Option(
            ["--auto-threshold"],
            metavar="SIZE",
            envvar="LLM_COMPACT_AUTO_THRESHOLD",
            show_envvar=True,
            help="Compact the conversation above 100k (tokens), 70% (of the context window), "
            "20m (messages) or 10x (exchanges), or off",
        ),
        click.Option(
            ["--compact-model"],
            metavar="MODEL",
            envvar="LLM_COMPACT_MODEL",
            help="Model that writes the summaries, or 'extractive' for none",
        ),
        click.Option(
            ["--compact-keep"],
            metavar="SIZE",
            help="How much stays verbatim: 2x (exchanges), 6m (messages), 8k (tokens), 20%",
        ),
        click.Option(
            ["--window"],
            metavar="SIZE",
            help="Context window of the model in tokens, e.g. 32k",
        ),
    ]


def _under_policy(callback: Callable[..., Any], *, is_chat: bool) -> Callable[..., Any]:
    @wraps(callback)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name, None) for name in (_THRESHOLD, _MODEL, _KEEP, _WINDOW)}
        with _errors():
            policy = _policy(given, kwargs, is_chat=is_chat)
            if policy is None:
                return callback(*args, **kwargs)
            from .automatic import Session
            from .display import Terminal

            if policy.threshold and (kwargs.get("conversation_id") or kwargs.get("_continue")):
                kwargs["conversation_id"] = _newest_generation(policy, kwargs["conversation_id"])
            voice = Terminal(kwargs.get("database"), is_chat=is_chat)
            with hook.active_in_process(Session(policy, voice)):
                return callback(*args, **kwargs)

    return wrapped


@contextmanager
def _errors() -> Iterator[None]:
    from .errors import CompactionError

    try:
        yield
    except CompactionError as ex:
        raise click.ClickException(str(ex)) from ex


def _policy(given: dict[str, Any], llm_options: dict[str, Any], *, is_chat: bool) -> Policy | None:
    """The policy of a call: options, then the environment, then what is stored."""
    from .settings import read_settings

    if given[_MODEL] and _is_option(_MODEL):
        from .summarizers import check_summarizer

        # Who names it here must not hear of a slip only when the conversation has grown.
        check_summarizer(given[_MODEL])
    # Who switches it off needs no settings, and may have broken them.
    if not is_chat and str(given[_THRESHOLD]).strip().lower() == "off":
        return None
    stored = read_settings()
    # Most calls of llm end here.
    if given[_THRESHOLD] is None and stored.auto_threshold is None and not is_chat:
        return None
    from .tokens import parse_keep, parse_threshold, parse_tokens

    asked = given[_THRESHOLD] is not None
    threshold = _read(_THRESHOLD, given, parse_threshold) if asked else stored.auto_threshold
    if threshold is None and not is_chat:
        return None
    from .compaction import default_database
    from .policy import TIMEOUT, Policy

    database = llm_options.get("database")
    return Policy(
        threshold=threshold,
        is_required=_is_option(_THRESHOLD),
        summarizer=given[_MODEL] or stored.model,
        template=stored.template,
        keep=_read(_KEEP, given, parse_keep) or stored.keep,
        max_summary=stored.max_summary,
        reuse_cache=stored.reuse_cache,
        window=_read(_WINDOW, given, parse_tokens),
        log=Path(database) if database else default_database(),
        is_stored=is_chat or _is_logged(llm_options),
        timeout=_timeout() or TIMEOUT,
        is_chat=is_chat,
        is_single=True,
    )


def _read(name: str, given: dict[str, Any], reader: Callable[[str], Any]) -> Any:
    if given[name] is None:
        return None
    try:
        return reader(given[name])
    except ValueError as ex:
        option = f"--{name.replace('_', '-')}"
        # A name of the option alone would not help who has set the variable long ago.
        where = option if _is_option(name) else "LLM_COMPACT_AUTO_THRESHOLD"
        raise click.BadParameter(str(ex), param_hint=where) from ex


def _is_option(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _is_logged(llm_options: dict[str, Any]) -> bool:
    """Whether `llm prompt` will log this call, by the same rule."""
    from llm.cli import logs_on

    is_on = logs_on() or llm_options.get("log")  # type: ignore[no-untyped-call]
    return bool(is_on and not llm_options.get("no_log"))


def _timeout() -> float | None:
    """Seconds for each call of a summarizer, from the environment."""
    text = os.environ.get("LLM_COMPACT_TIMEOUT")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise click.BadParameter(
            f"{text!r} is no number of seconds", param_hint="LLM_COMPACT_TIMEOUT"
        )
    return seconds


def _newest_generation(policy: Policy, conversation_id: str | None) -> str | None:
    """The conversation to go on with, where the given one was compacted and left at that.

    `llm -c` gives none. It means the one with the largest id, and that may be a compacted one:
    ids that are no ULIDs sort above ours.
    """
    from .log import newest_conversation, newest_generation, open_log

    if policy.log is None or not policy.log.exists():
        return conversation_id
    with open_log(policy.log) as db:
        given = conversation_id or newest_conversation(db)
        newest = newest_generation(db, given) if given else None
    if newest == given:
        return conversation_id
    click.echo(
        f"{given} was compacted, going on in {newest} "
        "(--auto-threshold off goes on in the original)",
        err=True,
    )
    return newest
