"""The options on llm's own commands: absent they change nothing, and each value has one source."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import Log
from scripted import Plugin
from test_plugin import without_times

Run = Callable[..., Result]

OPTIONS = {"auto_threshold", "compact_model", "compact_keep", "window"}
VARIABLE = "LLM_COMPACT_AUTO_THRESHOLD"

# One process for all commands: it says what is registered in it, and what came of each command.
PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import llm
from click.testing import CliRunner
from llm.cli import cli
from llm.plugins import pm
from scripted import Plugin, Reply

models = Plugin()
pm.register(models, name="scripted_models")
call = Reply(calls=[("c1", "lookup", {"key": "tide"}), ("c2", "lookup", {"key": "moon"})])
told = []
for command in json.load(sys.stdin):
    models.chatty.sent.clear()
    models.chatty.replies = {
        "loop": [call, Reply("Next. ", calls=[("c3", "lookup", {"key": "sun"})]), "Done."],
        "code": ["Here:\\n```\\nls\\n```\\nand\\n```\\ncat\\n```"],
        "fail": [Reply("Half of ", raises=RuntimeError("503 Try later"))],
        "think": [Reply("At six.", reasoning="The moon is full.")],
    }.get(command.get("replies"), [])
    result = CliRunner().invoke(cli, command["args"], input=command.get("input"))
    told.append([result.exit_code, result.stdout, result.stderr, repr(result.exception)])
print(json.dumps({
    "plugins": [plugin["name"] for plugin in llm.get_plugins()],
    "options": {name: [p.name for p in cli.commands[name].params] for name in ("prompt", "chat")},
    "callbacks": [cli.commands[name].callback.__code__.co_filename for name in ("prompt", "chat")],
    "execute": llm.get_model("chatty").execute.__code__.co_filename,
    "told": told,
}))
"""

COMMANDS: list[dict[str, Any]] = [
    {"args": ["-m", "chatty", "-s", "Be brief", "Hello", "-u"]},
    {"args": ["-c", "Again"]},
    {"args": ["-c", "--async", "And again"]},
    {"args": ["-c", "Not logged", "-n"]},
    {"args": ["-c", "As JSON", "--json"]},
    {"args": ["-m", "chatty", "As JSON", "--json", "-n"]},
    {"args": ["-m", "chatty", "From a pipe"], "input": "What is in it\n"},
    {"args": ["-c", "Think", "--no-stream"], "replies": "think"},
    {"args": ["-m", "chatty", "Look", "-T", "lookup", "--td"], "replies": "loop"},
    {"args": ["-m", "chatty", "Look", "-T", "lookup", "--cl", "2"], "replies": "loop"},
    {"args": ["-m", "chatty", "Look", "-T", "lookup", "--async"], "replies": "loop"},
    {"args": ["-c", "And look", "-u"], "replies": "loop"},
    {"args": ["-m", "chatty", "List", "-x"], "replies": "code"},
    {"args": ["-m", "chatty", "List", "--xl"], "replies": "code"},
    {"args": ["-m", "chatty", "-s", "Be a pirate", "-o", "max_tokens", "9", "--save", "pirate"]},
    {"args": ["-t", "pirate", "Hello"]},
    {"args": ["-m", "chatty", "Hello", "--schema", "name, age int"]},
    {"args": ["-m", "chatty", "Hello"], "replies": "fail"},
    {"args": ["-m", "nobody", "Hello"]},
    {"args": ["-c", "--cid", "nowhere", "Hello"]},
    {"args": ["-m", "chatty", "-o", "colour", "red", "Hello"]},
    {"args": ["chat", "-m", "chatty", "-s", "Be brief"], "input": "One\nTwo\nquit\n"},
    {
        "args": ["chat", "-c", "-T", "lookup"],
        "input": "Look\n!compacted\nquit\n",
        "replies": "loop",
    },
    {"args": ["chat", "-m", "chatty"], "input": "!multi\nOne\nTwo\n!end\nexit\n"},
    {"args": ["chat", "-m", "chatty"], "input": "One\n", "replies": "fail"},
    {"args": ["chat", "-m", "chatty"], "input": ""},
    {"args": ["chat", "-m", "nobody"], "input": "One\n"},
    {"args": ["chat", "-t", "pirate"], "input": "One\nquit\n"},
    {"args": ["logs", "off"]},
    {"args": ["-m", "chatty", "Not logged"]},
    {"args": ["-m", "chatty", "Logged", "--log"]},
    {"args": ["chat", "-m", "chatty"], "input": "Logged\nquit\n"},
    {"args": ["logs", "on"]},
    {"args": ["logs", "-n", "0", "--json"]},
    {"args": ["logs", "-c", "-t"]},
    {"args": ["--tempo", "Hello"]},
]


def in_process(user_path: Path, plugins: str) -> dict[str, Any]:
    """What all commands say in a process that loads these plugins."""
    environment = {**os.environ, "LLM_USER_PATH": str(user_path), "LLM_LOAD_PLUGINS": plugins}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(Path(__file__).parent)],
        input=json.dumps(COMMANDS),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ...]]:
    """What is said, and logged, with the plugin and without it."""
    directory = tmp_path_factory.mktemp("both")
    with_plugin = in_process(directory / "with", "llm-compact")
    without_plugin = in_process(directory / "without", "")
    yield with_plugin, without_plugin, directory


def volatile_left_out(told: list[Any]) -> list[Any]:
    text = re.sub(r"[0-9a-z]{26}", "ID", json.dumps(told))
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+(\.\d+)?(\+00:00|Z)?", "DATE", text)
    text = re.sub(r'(duration_ms\\": )\d+', r"\1N", text)
    said: list[Any] = json.loads(text.replace("/without/", "/with/"))
    return said


def test_the_options_are_there_with_the_plugin_and_only_then(both: Any) -> None:
    with_plugin, without_plugin, _ = both

    assert "llm-compact" in with_plugin["plugins"]
    assert without_plugin["plugins"] == ["scripted_models"]
    for command in ("prompt", "chat"):
        added = [n for n in with_plugin["options"][command] if n in OPTIONS]
        assert set(added) == OPTIONS and len(added) == len(OPTIONS)
        ours = [*without_plugin["options"][command], *added]
        assert with_plugin["options"][command] == ours


def test_commands_and_models_are_wrapped_with_the_plugin_and_only_then(both: Any) -> None:
    with_plugin, without_plugin, _ = both

    assert {Path(file).name for file in with_plugin["callbacks"]} == {"options.py"}
    assert {Path(file).name for file in without_plugin["callbacks"]} == {"cli.py"}
    assert Path(with_plugin["execute"]).name == "hook.py"
    assert Path(without_plugin["execute"]).name == "scripted.py"


@pytest.mark.parametrize(
    "number", range(len(COMMANDS)), ids=lambda n: " ".join(COMMANDS[n]["args"])
)
def test_a_command_says_the_same_with_and_without_the_plugin(number: int, both: Any) -> None:
    with_plugin, without_plugin, _ = both

    ours, theirs = (
        volatile_left_out(told["told"])[number] for told in (with_plugin, without_plugin)
    )

    assert ours == theirs


def test_each_row_of_the_log_is_the_same_with_and_without_the_plugin(both: Any) -> None:
    *_, directory = both
    ours, theirs = (
        without_times(Log(directory / name / "logs.db").rows()) for name in ("with", "without")
    )

    assert ours == theirs
    assert len(ours["turns"]) > 20
    assert not (directory / "with" / "compact.json").exists()


# The long talk is about 600 tokens, seven exchanges with what is asked next.
SOURCES = [
    # option, variable, setting, whether it is compacted
    (None, None, None, False),
    (None, None, "300", True),
    (None, "300", None, True),
    ("300", None, None, True),
    (None, None, "off", False),
    (None, "off", "300", False),
    ("off", None, "300", False),
    ("off", "300", "300", False),
    (None, "100k", "300", False),
    (None, "300", "100k", True),
    ("100k", "300", "300", False),
    ("300", "100k", "100k", True),
    ("300", "off", "off", True),
    ("300", "rubbish", None, True),
    ("OFF", None, "300", False),
    (None, "", "300", True),
]


@pytest.mark.parametrize(
    ("command", "option", "variable", "setting", "is_compacted"),
    [*(("prompt", *source) for source in SOURCES), *(("chat", *source) for source in SOURCES[:9])],
)
def test_an_option_beats_the_environment_and_that_beats_the_setting(
    command: str,
    option: str | None,
    variable: str | None,
    setting: str | None,
    is_compacted: bool,
    long_talk: str,
    log: Log,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if setting is not None:
        store(run, "auto-threshold", setting)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    options = ["--auto-threshold", option] if option else []

    result = say(run, command, "-c", *options, "--compact-model", "extractive")

    assert result.exit_code == 0, result.output
    assert len(log.threads()) == (2 if is_compacted else 1)
    assert ("Compacted" in result.stderr) == is_compacted


@pytest.mark.parametrize(
    ("option", "variable", "setting", "summarizer"),
    [
        (None, None, None, "chatty"),
        (None, None, "extractive", "extractive"),
        (None, "extractive", "summer", "extractive"),
        ("extractive", "summer", "keyed", "extractive"),
        ("sum", "extractive", "extractive", "summer"),
    ],
)
def test_the_summarizer_comes_from_the_option_the_environment_or_the_setting(
    option: str | None,
    variable: str | None,
    setting: str | None,
    summarizer: str,
    long_talk: str,
    log: Log,
    models: Plugin,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if setting is not None:
        store(run, "model", setting)
    if variable is not None:
        monkeypatch.setenv("LLM_COMPACT_MODEL", variable)
    models.summer.replies = models.chatty.replies = ["The tides of six places were told."]
    options = ["--compact-model", option] if option else []

    result = say(run, "prompt", "-c", "--auto-threshold", "300", *options)

    assert result.exit_code == 0, result.output
    assert compactions(log)[0]["summarizer"] == summarizer


@pytest.mark.parametrize(
    ("option", "setting", "kept"), [(None, "2x", 1), ("1m", "2x", 0), ("2x", "1m", 1)]
)
def test_what_is_kept_comes_from_the_option_or_the_setting(
    option: str | None, setting: str, kept: int, long_talk: str, log: Log, run: Run
) -> None:
    store(run, "keep", setting)
    options = ["--compact-keep", option] if option else []

    result = say(
        run, "prompt", "-c", "--auto-threshold", "500", "--compact-model", "extractive", *options
    )

    # What is asked now is kept besides.
    assert result.exit_code == 0, result.output
    assert compactions(log)[0]["exchanges_kept"] == kept


@pytest.mark.parametrize(
    ("option", "setting", "is_compacted"),
    [(None, "500", True), (None, "32k", False), ("500", "32k", True), ("32k", "500", False)],
)
def test_the_window_comes_from_the_option_or_the_setting(
    option: str | None, setting: str, is_compacted: bool, long_talk: str, log: Log, run: Run
) -> None:
    store(run, "window.chatty", setting)
    options = ["--window", option] if option else []

    say(run, "prompt", "-c", "--auto-threshold", "70%", "--compact-model", "extractive", *options)

    assert len(log.threads()) == (2 if is_compacted else 1)


def test_the_longest_summary_comes_from_the_setting(long_talk: str, log: Log, run: Run) -> None:
    store(run, "max-summary", "40")

    say(run, "prompt", "-c", "--auto-threshold", "400", "--compact-model", "extractive")

    assert 0 < compactions(log)[0]["summary_tokens"] <= 40


@pytest.mark.parametrize("command", ["prompt", "chat"])
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--auto-threshold", "rubbish", "'rubbish' is no threshold. Use 70%"),
        ("--auto-threshold", "70", "'70' is only 70 tokens. Use 70%"),
        ("--auto-threshold", "170%", "'170%' is more than the context window. Use 70%"),
        ("--auto-threshold", "", "'' is no threshold. Use 70%"),
        ("--window", "70%", "'70%' is no number of tokens. Use 32k"),
        ("--window", "foo", "'foo' is no number of tokens. Use 32k or 32000\n"),
        ("--compact-keep", "a lot", "'a lot' is not a size. Use 2x"),
    ],
)
def test_a_value_that_is_none_is_named_with_what_fits(
    command: str, option: str, value: str, says: str, long_talk: str, log: Log, run: Run
) -> None:
    before = log.rows()
    options = {"--auto-threshold": "70%", option: value}

    result = say(run, command, "-c", *(word for pair in options.items() for word in pair))

    assert result.exit_code == 2
    assert f"Error: Invalid value for {option}: {says}" in result.stderr
    assert log.rows() == before


@pytest.mark.parametrize("command", ["prompt", "chat"])
@pytest.mark.parametrize("options", [[], ["--auto-threshold", "90k"], ["--auto-threshold", "off"]])
def test_an_unknown_summarizer_is_refused_before_anything_is_said(
    command: str, options: list[str], long_talk: str, log: Log, models: Plugin, run: Run
) -> None:
    before = log.rows()

    result = say(run, command, "-c", *options, "--compact-model", "nobody")

    assert result.exit_code == 1
    assert result.stderr == (
        "Error: Unknown model: nobody. See llm models, or use extractive, which needs no model\n"
    )
    assert models.chatty.sent == []
    assert log.rows() == before


@pytest.mark.parametrize("source", ["variable", "setting"])
def test_an_unknown_summarizer_of_long_ago_ends_no_conversation(
    source: str,
    user_path: Path,
    long_talk: str,
    log: Log,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if source == "variable":
        monkeypatch.setenv("LLM_COMPACT_MODEL", "nobody")
    else:
        (user_path / "compact.json").write_text('{"model": "nobody"}')

    unneeded = say(run, "prompt", "-c", "--auto-threshold", "90k")
    needed = say(run, "prompt", "-c", "--auto-threshold", "300")

    assert (unneeded.exit_code, unneeded.stderr) == (0, "")
    assert needed.exit_code == 0
    assert "Not compacted. Unknown model: nobody." in needed.stderr


@pytest.mark.parametrize("command", ["prompt", "chat"])
def test_a_variable_that_is_no_size_is_named(
    command: str, long_talk: str, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "plenty")
    before = log.rows()

    result = say(run, command, "-c")

    assert result.exit_code == 2
    assert f"Invalid value for {VARIABLE}: 'plenty' is no threshold. Use 70%" in result.stderr
    assert log.rows() == before


def test_a_variable_that_is_no_size_stops_no_other_command(
    long_talk: str, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "plenty")

    assert run("logs", "-c").exit_code == 0
    assert run("prompt", "--help").exit_code == 0
    assert run("compact", "-c", "-m", "extractive").exit_code == 0


@pytest.mark.parametrize("command", ["prompt", "chat"])
def test_a_stored_value_that_is_none_is_named_with_its_file(
    command: str, user_path: Path, long_talk: str, log: Log, run: Run
) -> None:
    (user_path / "compact.json").write_text('{"auto-threshold": "plenty"}')

    result = say(run, command, "-c")

    assert result.exit_code == 1
    assert (
        f"{user_path / 'compact.json'}: auto-threshold: 'plenty' is no threshold" in result.stderr
    )
    assert "llm compact settings clear auto-threshold" in result.stderr


@pytest.mark.parametrize("source", ["option", "variable", "setting"])
def test_a_percentage_of_an_unknown_window_is_an_error_only_where_it_was_asked_for(
    source: str, long_talk: str, log: Log, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "variable":
        monkeypatch.setenv(VARIABLE, "70%")
    if source == "setting":
        store(run, "auto-threshold", "70%")

    result = say(run, "chat", "-c", *(["--auto-threshold", "70%"] if source == "option" else []))

    is_asked_for = source == "option"
    assert result.exit_code == (1 if is_asked_for else 0)
    assert result.stderr.count("No context window known for 'chatty'") == 1
    for way in ("--auto-threshold 32k", "--window 32k", "settings set window.chatty 32k"):
        assert way in result.stderr
    assert len(log.messages()) == (13 if is_asked_for else 17)


def test_the_help_says_what_the_options_are_for(run: Run) -> None:
    for command in ("prompt", "chat"):
        text = " ".join(run(command, "--help").stdout.split())
        assert "100k (tokens), 70% (of the context window), 20m (messages) or 10x (exch" in text
        assert VARIABLE in text
        for option in ("--compact-model MODEL", "--compact-keep SIZE", "--window SIZE"):
            assert option in text


def store(run: Run, name: str, value: str) -> None:
    assert run("compact", "settings", "set", name, value).exit_code == 0


def say(run: Run, command: str, *options: str) -> Result:
    """Ask something small: once, or twice in a chat."""
    if command == "chat":
        return run("chat", *options, input="And today?\nAnd tomorrow?\nquit\n")
    return run(*options, "And today?")


def compactions(log: Log) -> list[dict[str, Any]]:
    return list(log.db["compactions"].rows_where(order_by="turn_id"))
