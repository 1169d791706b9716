"""What is known of a model's context window, and what --keep 20% makes of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import Log
from oracle import count_tokens

from llm_compact.errors import SettingsError
from llm_compact.windows import context_window

Run = Callable[..., Result]


@pytest.fixture
def write(user_path: Path) -> Callable[[str, Any], None]:
    """Put a file into llm's user directory."""

    def _write(name: str, data: Any) -> None:
        user_path.mkdir(exist_ok=True)
        (user_path / name).write_text(data if isinstance(data, str) else json.dumps(data))

    return _write


def test_a_model_that_nothing_knows_has_no_known_window() -> None:
    assert context_window("chatty") is None


@pytest.mark.parametrize(
    "model, file, data, window",
    [
        ("chatty", "compact.json", {"window.chatty": 512}, 512),
        ("chatty", "compact.json", {"window.chatty": "32k"}, 32_000),
        ("chatty", "compact.json", {"window.other": 512}, None),
        ("llama3.2:latest", "model_options.json", {"llama3.2:latest": {"num_ctx": 8192}}, 8_192),
        ("llama3.2:latest", "model_options.json", {"llama3.2:latest": {"num_ctx": "8192"}}, 8_192),
        ("llama3.2:latest", "model_options.json", {"llama3.2:latest": {"seed": 1}}, None),
        (
            "openrouter/a/b:free",
            "openrouter_models.json",
            {"data": [{"id": "a/c"}, {"id": "a/b:free", "context_length": 131_072}]},
            131_072,
        ),
        (
            "mistral/tide",
            "mistral_models.json",
            {"data": [{"id": "tide", "max_context_length": 32_768}]},
            32_768,
        ),
        (
            "anthropic/claude-tide-9",
            "anthropic_models.json",
            {"data": [{"id": "claude-tide-9-20310101", "max_input_tokens": 900_000}]},
            900_000,
        ),
        ("tide", "mistral_models.json", {"data": [{"id": "tide", "max_context_length": 9}]}, None),
    ],
)
def test_a_window_is_found_where_llm_and_its_plugins_keep_it(
    model: str, file: str, data: Any, window: int | None, write: Callable[[str, Any], None]
) -> None:
    write(file, data)

    assert context_window(model) == window


def test_what_a_user_says_counts_first_then_what_he_stored_then_what_was_learned_then_the_option(
    write: Callable[[str, Any], None],
) -> None:
    model = "mistral/tide"
    write("mistral_models.json", {"data": [{"id": "tide", "max_context_length": 4_000}]})
    assert context_window(model) == 4_000
    write("model_options.json", {model: {"num_ctx": 3_000}})
    assert context_window(model) == 3_000
    write("compact.json", {f"learned.{model}": 2_500})
    assert context_window(model) == 2_500
    write("compact.json", {f"learned.{model}": 2_500, f"window.{model}": 2_000})
    assert context_window(model) == 2_000
    assert context_window(model, explicit=1_000) == 1_000


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '"x"', '{"data": 5}', "\x00"])
@pytest.mark.parametrize(
    "file",
    [
        "model_options.json",
        "openrouter_models.json",
        "mistral_models.json",
        "anthropic_models.json",
    ],
)
def test_a_broken_file_of_others_knows_nothing(
    file: str, broken: str, write: Callable[[str, Any], None]
) -> None:
    write(file, broken)

    for model in ("chatty", "openrouter/no/such", "mistral/tide", "anthropic/tide"):
        assert context_window(model) is None


@pytest.mark.parametrize("value", [0, -1, True, None, 1.5, "many", "20%", "2x", [], {}])
def test_what_is_no_size_is_no_window(value: Any, write: Callable[[str, Any], None]) -> None:
    write("model_options.json", {"chatty": {"num_ctx": value}})

    assert context_window("chatty") is None


def test_broken_settings_are_told_where_a_window_is_needed(
    write: Callable[[str, Any], None],
) -> None:
    write("compact.json", "{")

    with pytest.raises(SettingsError, match=r"compact\.json is not JSON"):
        context_window("chatty")
    assert context_window("chatty", explicit=512) == 512


@pytest.mark.skipif(sys.version_info < (3, 11), reason="genai-prices needs Python 3.11")
@pytest.mark.parametrize(
    "model, window",
    [
        ("gpt-4o", 128_000),
        ("anthropic/claude-sonnet-4-0", 200_000),
        ("openrouter/openai/gpt-4o", 128_000),
        ("gemini/gemini-2.0-flash", 1_000_000),
        # A local model's window is not that of the provider whose model it resembles.
        ("deepseek-r1:8b", None),
        ("mistral-small", None),
        ("ollama/gpt-4o", None),
        ("gpt-mythical", None),
    ],
)
def test_public_prices_know_the_windows_of_public_models(model: str, window: int | None) -> None:
    assert context_window(model) == window


def test_without_public_prices_a_window_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)

    assert context_window("gpt-4o") is None


def test_a_percentage_keeps_a_part_of_the_window(
    long_talk: str, log: Log, run: Run, write: Callable[[str, Any], None]
) -> None:
    write("compact.json", {"window.chatty": 1_000})

    result = run("compact", "-c", "-m", "extractive", "--keep", "25%")

    assert result.exit_code == 0, result.output
    tail = log.messages()[3:]
    source = log.messages(long_talk)
    assert count_tokens(tail) <= 250 < count_tokens(source[-len(tail) - 2 :])
    assert tail == source[-len(tail) :]


def test_a_percentage_that_is_more_than_the_conversation_keeps_all_of_it(
    long_talk: str, run: Run, write: Callable[[str, Any], None]
) -> None:
    write("compact.json", {"window.chatty": 100_000})

    result = run("compact", "-c", "-m", "extractive", "--keep", "25%")

    assert result.exit_code == 3
    assert "--keep 25% keeps all of it" in result.output


def test_where_no_window_is_known_the_three_ways_are_named(long_talk: str, run: Run) -> None:
    result = run("compact", "-c", "--keep", "25%")

    assert result.exit_code == 1
    for way in ("--keep 8k", "--keep 2x", "settings set window.chatty 32k"):
        assert way in result.output
