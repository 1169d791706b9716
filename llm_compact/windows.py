"""The context window of a model, as far as anything on this disk knows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import llm

from .settings import read_settings

# (prefix of the model ids that the adapter registers, its cache in llm's user directory, the key)
_CACHES = (
    ("openrouter/", "openrouter_models.json", "context_length"),
    ("mistral/", "mistral_models.json", "max_context_length"),
    ("anthropic/", "anthropic_models.json", "max_input_tokens"),
)
# Providers whose adapters register, or once registered, ids without a prefix. Local models have
# no prefix either ("mistral-7b-instruct"), and how they run says nothing about a provider's window.
_UNPREFIXED = {"openai", "anthropic", "google", "deepseek", "x-ai", "cohere", "perplexity"}


def context_window(
    model_id: str, *, explicit: int | None = None, user_dir: Path | None = None
) -> int | None:
    """How many tokens a model takes in one request, or None where nothing says so.

    What the user says counts first (`explicit`), then what he stored, then what an overflow has
    taught us, then the model's own option `num_ctx`, then what its adapter has cached, then the
    genai-prices data. Files of others that are missing or broken know nothing.

    Raises `SettingsError` where the user's own settings are broken.
    """
    directory = user_dir or Path(llm.user_dir())  # type: ignore[no-untyped-call]
    return (
        explicit
        or read_settings(directory).window(model_id)
        or _option(model_id)
        or _cached(directory, model_id)
        or _priced(model_id)
    )


def _option(model_id: str) -> int | None:
    """What `llm models options set MODEL num_ctx` says: Ollama cuts off all before that."""
    from llm.cli import get_model_options

    try:
        return _tokens(get_model_options(model_id).get("num_ctx"))
    except (AttributeError, OSError, ValueError):
        return None  # a file that holds something else


def _cached(directory: Path, model_id: str) -> int | None:
    for prefix, file, key in _CACHES:
        if not model_id.startswith(prefix):
            continue
        data = _json(directory / file)
        models = data.get("data") if isinstance(data, dict) else None
        windows = {
            str(model.get("id")): _tokens(model.get(key))
            for model in (models if isinstance(models, list) else ())
            if isinstance(model, dict)
        }
        name = model_id.removeprefix(prefix)
        # Adapters register "claude-haiku-4-5" where the provider lists "claude-haiku-4-5-20251001".
        undated = {_undated(listed): window for listed, window in windows.items()}
        return windows.get(name) or undated.get(_undated(name))
    return None


def _undated(name: str) -> str:
    return re.sub(r"-(\d{8}|latest|0)$", "", name)


def _priced(model_id: str) -> int | None:
    """What the data of genai-prices says, which needs Python 3.11; it comes with the package."""
    if ":" in model_id.partition("/")[0]:
        return None  # a local model of Ollama, such as deepseek-r1:8b
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    provider_id, slash, name = model_id.partition("/")
    try:
        if slash:
            _, model = get_snapshot().find_provider_model(name, None, provider_id, None)
            return _tokens(model.context_window)
        provider, model = get_snapshot().find_provider_model(model_id, None, None, None)
    except LookupError:
        return None
    return _tokens(model.context_window) if provider.id in _UNPREFIXED else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def _tokens(value: Any) -> int | None:
    """A window as it is stored, or None for what can't be one."""
    if isinstance(value, str):
        from .tokens import parse_size

        try:
            size = parse_size(value)
        except ValueError:
            return None
        return size.value if size.unit == "tokens" else None
    is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_size else None
