"""The `llm compact` commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click_default_group import DefaultGroup

if TYPE_CHECKING:
    import sqlite_utils

    from .display import Shown
    from .plan import Plan
    from .tokens import Size

# Each `llm` command imports this module, so what a command needs is imported when it runs.


class NothingToDo(click.ClickException):
    """Exit code 3: the conversation is too short, or there is nothing to gain."""

    exit_code = 3


def _size(reader: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A callback that reads an option with a function of `tokens`."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        from . import tokens

        try:
            return getattr(tokens, reader)(value) if value is not None else None
        except ValueError as ex:
            raise click.BadParameter(str(ex), ctx, param) from ex

    return read


_SUMMARIZER = "the one that summarizes"
"The value of --check without a MODEL. It has spaces: no model has that name."

_database_option = click.option(
    "-d",
    "--database",
    type=click.Path(readable=True, dir_okay=False),
    help="Path to log database",
)


@click.group(name="compact", cls=DefaultGroup, default="run", default_if_no_args=True)
def compact() -> None:
    """
    Compact a long conversation: a summary of its older part, the recent exchanges word for word

    Example usage:

    \b
        llm compact -c
        llm compact -c 'keep the schema decisions'
        llm compact --cid 01jm8ec74wxsdatyn5pq1fp0s5 -m extractive
    """


@compact.command(name="run")  # type: ignore[untyped-decorator]
@click.argument("focus_words", metavar="[FOCUS]...", nargs=-1)
@click.option(
    "_continue", "-c", "--continue", is_flag=True, help="Compact the most recent conversation"
)
@click.option(
    "conversation_id", "--cid", "--conversation", help="Compact the conversation with the given ID"
)
@click.option(
    "model_id",
    "-m",
    "--model",
    envvar="LLM_COMPACT_MODEL",
    help="Model that writes the summary, or 'extractive' for none. Default: the conversation's own",
)
@click.option(
    "options",
    "-o",
    "--option",
    type=(str, str),
    multiple=True,
    help="key/value options for the summarizer",
)
@click.option("--key", help="API key for the summarizer")
@click.option(
    "keep",
    "-k",
    "--keep",
    metavar="SIZE",
    callback=_size("parse_keep"),
    help="How much stays verbatim: 2x (exchanges), 6m (messages), 8k (tokens), 20% (of the "
    "context window). Default: 2x",
)
@click.option(
    "--max-summary",
    metavar="SIZE",
    callback=_size("parse_length"),
    help="Longest summary that is accepted: 1k (tokens) or 5% (of what it replaces)",
)
@click.option("-t", "--template", help="Template to use as prompt, $input is the transcript")
@click.option(
    "--window",
    metavar="SIZE",
    callback=_size("parse_tokens"),
    help="Context window of the summarizer in tokens, e.g. 32k",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    help="Calls at the same time, where the summary takes several",
)
@click.option("--focus", help="What the summary should look after, the same as FOCUS")
@click.option(
    "pins",
    "--pin",
    metavar="TEXT",
    multiple=True,
    help="Text that every summary keeps word for word from now on",
)
@click.option(
    "check",
    "--check",
    metavar="[MODEL]",
    is_flag=False,
    flag_value=_SUMMARIZER,
    help="Ask a model (default: the one that summarizes) for facts of what was summarized, and "
    "store only a conversation that still tells them",
)
@click.option(
    "--prune-tools",
    is_flag=True,
    help="Only shorten the large tool output in the older part; no summary, no model",
)
@click.option(
    "--reuse-cache/--no-reuse-cache",
    default=None,
    help="Send the conversation as its model was sent it before, not a transcript: its provider "
    "may have that in its cache. For a summary by the conversation's own model",
)
@_database_option
@click.option("--dry-run", is_flag=True, help="Show what would be done; call and write nothing")
@click.option(
    "--from-original",
    is_flag=True,
    help="Summarize the original messages of all generations, not the previous summary",
)
@click.option("--again", is_flag=True, help="Compact a second time from the same point")
@click.option("json_output", "--json", is_flag=True, help="Output the compaction as JSON")
@click.option("-u", "--usage", is_flag=True, help="Show token usage of the summarizer")
@click.option("--quiet", is_flag=True, help="Output nothing but errors")
def run(
    focus_words: tuple[str, ...],
    _continue: bool,
    conversation_id: str | None,
    model_id: str | None,
    options: tuple[tuple[str, str], ...],
    key: str | None,
    keep: Size | None,
    max_summary: Size | None,
    template: str | None,
    window: int | None,
    jobs: int,
    focus: str | None,
    pins: tuple[str, ...],
    check: str | None,
    database: str | None,
    prune_tools: bool,
    reuse_cache: bool | None,
    dry_run: bool,
    from_original: bool,
    again: bool,
    json_output: bool,
    usage: bool,
    quiet: bool,
) -> None:
    """
    Compact a conversation and print the summary

    The summary and the most recent exchanges become a new conversation, which llm -c goes on
    with. The original stays in the log. FOCUS says what the summary should look after. Quote it,
    or use --focus: a first word such as list or show is taken for a command.

    Example usage:

    \b
        llm compact -c
        llm compact -c 'keep the schema decisions and the open migration'
        llm compact -c -m gpt-5-nano --keep 4x
        llm compact -c --pin 'The release is on Friday'
        llm compact -c -m extractive --dry-run
        llm compact -c --prune-tools
    """
    from . import display
    from .compaction import carry_out, default_database, model_name, reusable_prefix
    from .log import open_log
    from .plan import Wishes, plan_compaction
    from .settings import read_settings
    from .source import read_source
    from .summarizers import EXTRACTIVE, examiner_name, get_summarizer, planned_calls
    from .summarizers.template import load_template

    _check_no_mistyped_command(focus_words)
    if focus and focus_words:
        raise click.UsageError("Use either FOCUS or --focus")
    if conversation_id == "":
        raise click.UsageError("--cid is empty")
    if check == "":
        raise click.UsageError("--check is empty")
    if prune_tools:
        _check_no_summary_options()
    shown = display.Shown(summary=not (json_output or quiet), progress=not quiet)
    with _refusals(shown), open_log(Path(database) if database else default_database()) as db:
        stored = read_settings()
        source = read_source(db, conversation_id)
        wishes = Wishes(
            keep=keep or stored.keep,
            max_summary=max_summary or stored.max_summary,
            focus=focus or " ".join(focus_words) or None,
            from_original=from_original,
            pins=pins,
            again=again,
            prune_tools=prune_tools,
        )
        plan = plan_compaction(source, wishes)
        if prune_tools:
            _prune(db, plan, database, dry_run, json_output, quiet)
            return
        # The stored one is for whatever model there is, and extractive is none.
        is_offline = (model_id or stored.model) == EXTRACTIVE
        template = template or (None if is_offline else stored.template)
        own_prompt = load_template(template) if template else None
        name = model_name(source, model_id, own_prompt, stored.model)
        prefix = reusable_prefix(db, plan, name, asked=reuse_cache, stored=stored.reuse_cache)
        if dry_run:
            calls = planned_calls(name, plan.head, window, prefix)
            if check is not None:
                examiner_name(None if check == _SUMMARIZER else check, name)
                calls += 1
            if json_output:
                display.show_json(display.plan_json(plan, name, calls))
            elif not quiet:
                display.show_plan(plan, name, calls)
            return
        summarizer = get_summarizer(
            name,
            options=options,
            key=key,
            window=window,
            jobs=jobs,
            template=own_prompt,
            prefix=prefix,
        )
        if not quiet:
            display.show_start(plan, summarizer.name)
        asked = check == _SUMMARIZER or check or False
        compaction = carry_out(db, plan, summarizer, watch=shown, check=asked)
    shown.finish(compaction.summary)
    if json_output:
        display.show_json(display.compaction_json(compaction))
    if not quiet:
        display.show_check(compaction)
        display.show_done(compaction, database)
    if usage:
        display.show_usage(compaction.usage)


def _check_no_mistyped_command(focus_words: tuple[str, ...]) -> None:
    """Raises `click.UsageError` for a single word that is nearly the name of a command.

    Whoever types `run` means a focus.
    """
    parent = click.get_current_context().parent
    # What the group has taken for no command.
    first = getattr(parent, "arg0", None)
    if focus_words != (first,):
        return
    from difflib import get_close_matches

    for name in get_close_matches(first, compact.commands, n=1, cutoff=0.8):
        raise click.UsageError(
            f"Did you mean llm compact {name}? With {first!r} as focus: llm compact run {first}"
        )


_OF_SUMMARIES = {
    "focus_words": "FOCUS",
    "model_id": "-m",
    "options": "-o",
    "key": "--key",
    "max_summary": "--max-summary",
    "template": "-t",
    "window": "--window",
    "jobs": "--jobs",
    "focus": "--focus",
    "from_original": "--from-original",
    "check": "--check",
    "usage": "-u",
    "reuse_cache": "--reuse-cache",
}


def _check_no_summary_options() -> None:
    """Raises `click.UsageError` for an option that says something about a summary."""
    context = click.get_current_context()
    for name, value in context.params.items():
        # Whoever has set LLM_COMPACT_MODEL asked for nothing here.
        is_given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name in _OF_SUMMARIES and is_given and value:
            raise click.UsageError(
                f"--prune-tools writes no summary: leave out {_OF_SUMMARIES[name]}"
            )


def _prune(
    db: sqlite_utils.Database,
    plan: Plan,
    database: str | None,
    dry_run: bool,
    json_output: bool,
    quiet: bool,
) -> None:
    from . import display
    from .compaction import stored_compaction
    from .prune import draft_pruning

    draft = draft_pruning(plan)
    if dry_run:
        if json_output:
            display.show_json(display.pruning_json(plan, draft.record))
        elif not quiet:
            display.show_pruning(plan, draft.record)
        return
    compaction = stored_compaction(db, plan, draft)
    if json_output:
        display.show_json(display.compaction_json(compaction))
    if not quiet:
        display.show_done(compaction, database)


@compact.command(name="list")  # type: ignore[untyped-decorator]
@click.option(
    "conversation_id", "--cid", "--conversation", help="Only what this conversation belongs to"
)
@click.option("--count", type=click.IntRange(min=1), help="How many, the newest ones")
@click.option("json_output", "--json", is_flag=True, help="Output as JSON")
@_database_option
def list_(
    conversation_id: str | None, count: int | None, json_output: bool, database: str | None
) -> None:
    """
    List compactions, newest first

    Each line: the new conversation, when, generation, tokens before and after, what made it
    happen, who summarized, the conversation it came from, its name.

    Example usage:

    \b
        llm compact list --count 5
        llm compact list --cid 01jm8ec74wxsdatyn5pq1fp0s5
    """
    from . import display
    from .records import read_compactions

    with _log(database) as db:
        compactions = read_compactions(db, conversation_id)[:count]
    if json_output:
        display.show_json([display.logged_json(compaction) for compaction in compactions])
    else:
        display.show_list(compactions)


@compact.command(name="show")  # type: ignore[untyped-decorator]
@click.argument("id", required=False)
@click.option(
    "_continue", "-c", "--continue", is_flag=True, help="Show that of the most recent conversation"
)
@click.option("--lost", is_flag=True, help="Only the exact values that were not carried over")
@click.option("--context", is_flag=True, help="The whole compacted conversation instead")
@click.option("json_output", "--json", is_flag=True, help="Output as JSON")
@_database_option
def show(
    id: str | None,
    _continue: bool,
    lost: bool,
    context: bool,
    json_output: bool,
    database: str | None,
) -> None:
    """
    Show a compaction: its record and its summary

    ID is a compacted conversation, the turn of a compaction, or an original conversation, of
    which the newest generation is shown. Without it, the conversation that llm -c would continue.

    Example usage:

    \b
        llm compact show
        llm compact show 01jm8ec74wxsdatyn5pq1fp0s5 --context
    """
    from . import display
    from .records import find_compaction, lineage_of, read_context, read_summary

    if id is not None and _continue:
        raise click.UsageError("Use either ID or -c")
    if lost and context:
        raise click.UsageError("Use either --lost or --context")
    if id == "":
        raise click.UsageError("ID is empty")
    with _log(database) as db:
        compaction = find_compaction(db, id)
        lineage = lineage_of(db, compaction.conversation_id)
        summary = read_summary(db, compaction)
        messages = read_context(db, compaction) if context else None
    if json_output:
        data = display.logged_json(compaction) | {"lineage": lineage, "summary": summary}
        if messages is not None:
            data["messages"] = [message.to_dict() for message in messages]
        display.show_json(data)
    elif messages is not None:
        display.show_context(messages)
    elif lost:
        display.show_lost(compaction)
    else:
        display.show_compaction(compaction, lineage, summary)


@compact.command(name="pin")  # type: ignore[untyped-decorator]
@click.argument("texts", metavar="TEXT_OR_RESPONSE_ID...", nargs=-1, required=True)
@click.option(
    "_continue", "-c", "--continue", is_flag=True, help="Pin to the most recent conversation"
)
@click.option(
    "conversation_id", "--cid", "--conversation", help="Pin to the conversation with the given ID"
)
@click.option("--response", is_flag=True, help="Pin the answer of a response, not its prompt")
@_database_option
def pin(
    texts: tuple[str, ...],
    _continue: bool,
    conversation_id: str | None,
    response: bool,
    database: str | None,
) -> None:
    """
    Keep a text or a message word for word

    Each summary of the conversation ends with its pins, in every later generation. A response id
    (see llm logs) pins what you said there to the conversation of the response.

    Example usage:

    \b
        llm compact pin 'The staging database is tide-stage-2'
        llm compact pin 01jm8ec7aqh4gmn0xvxc3vqrqd
    """
    from . import display
    from .pins import pin_once, pins_from

    if conversation_id == "":
        raise click.UsageError("--cid is empty")
    with _log(database) as db:
        pins = pins_from(db, texts, conversation_id, is_continued=_continue, answers=response)
        pinned = pin_once(db, pins)
    display.show_pinned(pinned)


@compact.command(name="pins")  # type: ignore[untyped-decorator]
@click.option(
    "_continue", "-c", "--continue", is_flag=True, help="Those of the most recent conversation"
)
@click.option(
    "conversation_id", "--cid", "--conversation", help="Those of the conversation with this ID"
)
@click.option("all_", "--all", is_flag=True, help="Those of all conversations")
@click.option("json_output", "--json", is_flag=True, help="Output as JSON")
@_database_option
def pins(
    _continue: bool,
    conversation_id: str | None,
    all_: bool,
    json_output: bool,
    database: str | None,
) -> None:
    """
    List what is pinned to a conversation and to those that it came from

    Example usage:

    \b
        llm compact pins
        llm compact pins --cid 01jm8ec74wxsdatyn5pq1fp0s5
    """
    from . import display
    from .pinned import read_pins
    from .pins import conversation_of

    if all_ and conversation_id is not None:
        raise click.UsageError("Use either --all or --cid")
    if conversation_id == "":
        raise click.UsageError("--cid is empty")
    with _log(database) as db:
        found = read_pins(db, None if all_ else conversation_of(db, conversation_id))
    if json_output:
        display.show_json(found)
    else:
        display.show_pins(found)


@compact.command(name="unpin")  # type: ignore[untyped-decorator]
@click.argument("pin_ids", metavar="PIN_ID...", nargs=-1, required=True)
@_database_option
def unpin(pin_ids: tuple[str, ...], database: str | None) -> None:
    """
    Remove pins

    Summaries that exist stay as they are, the next one goes without.

    Example usage:

    \b
        llm compact unpin 01m8pe0r6w2zqkbm1dn1hq5s4v
    """
    from . import display
    from .pinned import remove_pins

    ids = list(dict.fromkeys(pin_ids))
    with _log(database) as db:
        remove_pins(db, ids)
    display.show_change(f"Unpinned {', '.join(ids)}")


@contextmanager
def _log(database: str | None) -> Iterator[sqlite_utils.Database]:
    """The log of a command that makes no summary, and what goes wrong with it."""
    from .compaction import default_database
    from .errors import CompactionError
    from .log import open_log

    try:
        with open_log(Path(database) if database else default_database()) as db:
            yield db
    except CompactionError as ex:
        raise click.ClickException(str(ex)) from ex


@contextmanager
def _refusals(shown: Shown) -> Iterator[None]:
    """What was refused or failed, on a line of its own and with its exit code."""
    from .errors import CompactionError, NothingToCompact

    try:
        yield
    except NothingToCompact as ex:
        shown.break_off()
        raise NothingToDo(str(ex)) from ex
    except CompactionError as ex:
        shown.break_off()
        raise click.ClickException(str(ex)) from ex
    except KeyboardInterrupt as ex:
        shown.break_off()
        raise click.ClickException("Interrupted. Nothing was written") from ex


@compact.command(name="demo")  # type: ignore[untyped-decorator]
def demo() -> None:
    """
    Compact a sample conversation, offline and in a temporary log

    Shows the real commands and what they print. Needs no key, no network and no model.
    """
    from .demo import main

    main()


@compact.group(  # type: ignore[untyped-decorator]
    name="settings", cls=DefaultGroup, default="list", default_if_no_args=True
)
def settings() -> None:
    """
    Manage what llm compact does where no option says otherwise

    Settings are stored in compact.json in the user directory of llm.
    """


@settings.command(name="list")  # type: ignore[untyped-decorator]
@click.option("json_output", "--json", is_flag=True, help="Output as JSON")
def settings_list(json_output: bool) -> None:
    """
    List stored settings

    Example usage:

    \b
        llm compact settings list
    """
    from . import display
    from .settings import settings_list

    with _settings_errors():
        stored = settings_list()
    if json_output:
        display.show_json(dict(stored))
    else:
        display.show_settings(stored)


@settings.command(name="set")  # type: ignore[untyped-decorator]
@click.argument("name")
@click.argument("value")
def settings_set(name: str, value: str) -> None:
    """
    Store a setting

    \b
    auto-threshold  Compact by itself from this size on: 70% (of the context
                    window), 100k (tokens), 20m (messages), 10x (exchanges), off
    model           Model that writes summaries, or 'extractive' for none
    keep            How much stays verbatim: 2x, 6m, 8k or 20%
    max-summary     Longest summary that is accepted: 1k or 5%
    template        llm template that a model is asked with: $input is the transcript
    reuse-cache     Whether a summary by the conversation's own model is made from
                    what its provider may have in its cache: on or off
    window.MODEL    Context window of a model in tokens, e.g. 32k

    Example usage:

    \b
        llm compact settings set model gpt-5-nano
        llm compact settings set keep 4x
        llm compact settings set window.SmolLM2 512
    """
    from . import display
    from .settings import store_setting

    with _settings_errors():
        display.show_change(f"Set {store_setting(name, value)}={value}")


@settings.command(name="clear")  # type: ignore[untyped-decorator]
@click.argument("name")
def settings_clear(name: str) -> None:
    """
    Clear a setting

    For window.MODEL, what was learned from an error of its provider is cleared, too.

    Example usage:

    \b
        llm compact settings clear keep
        llm compact settings clear window.SmolLM2
    """
    from . import display
    from .settings import clear_setting

    with _settings_errors():
        is_cleared = clear_setting(name)
    display.show_change(f"Cleared {name}" if is_cleared else f"{name} is not set")


@contextmanager
def _settings_errors() -> Iterator[None]:
    from .errors import SettingsError

    try:
        yield
    except SettingsError as ex:
        raise click.ClickException(str(ex)) from ex
