"""What the user stored: compact.json in llm's user directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import SettingsError

if TYPE_CHECKING:
    from .tokens import Size

# Each prompt reads the settings, mostly to find that there are none: what reading a value or
# writing the file takes is imported there.

NAMES = ("auto-threshold", "model", "template", "keep", "max-summary", "reuse-cache")
"The settings that there is one of. The others are `window.MODEL`, one for each model."

_WINDOW, _LEARNED = "window.", "learned."
_READERS = {
    "auto-threshold": "parse_threshold",
    "keep": "parse_keep",
    "max-summary": "parse_length",
}
_WAIT = 10
"Seconds for other processes that write settings, each for some milliseconds."


@dataclass(frozen=True)
class Settings:
    """The stored settings; None for what is not stored."""

    auto_threshold: Size | None = None
    "From which size on a conversation is compacted by itself. None, too, if `off` is stored."
    model: str | None = None
    "The model that writes summaries, an id or alias, or `extractive`."
    template: str | None = None
    "The llm template that a model is asked with instead of our own words."
    keep: Size | None = None
    max_summary: Size | None = None
    reuse_cache: bool = False
    "Whether the conversation's own model is sent the conversation instead of a transcript."
    windows: Mapping[str, int] = field(default_factory=dict)
    "Context windows (tokens) that the user stored, by model id."
    learned: Mapping[str, int] = field(default_factory=dict)
    "Context windows (tokens) that a provider's error has named, by model id."

    def window(self, model_id: str) -> int | None:
        """The context window of a model in tokens: what the user says counts first."""
        return self.windows.get(model_id) or self.learned.get(model_id)


def read_settings(user_dir: Path | None = None) -> Settings:
    """The settings of llm's user directory, or of another one.

    Raises `SettingsError` for a file that is broken, and for a value that is none.
    """
    path = _path(user_dir)
    stored = _load(path)
    if not stored:
        return Settings()
    values = {name: _stored_value(path, name, raw) for name, raw in stored.items()}
    return Settings(
        auto_threshold=values.get("auto-threshold"),
        model=values.get("model"),
        template=values.get("template"),
        keep=values.get("keep"),
        max_summary=values.get("max-summary"),
        reuse_cache=values.get("reuse-cache", False),
        windows=_by_model(values, _WINDOW),
        learned=_by_model(values, _LEARNED),
    )


def settings_list(user_dir: Path | None = None) -> list[tuple[str, str]]:
    """Names and values as people wrote them, learned windows last, as `learned.MODEL`.

    A value that can't be read is among them, so that it can be seen and cleared.
    """
    stored = _load(_path(user_dir))
    names = [name for name in NAMES if name in stored]
    for prefix in (_WINDOW, _LEARNED):
        names += [name for name in stored if _model_in(name, prefix)]
    return [(name, _written(stored[name])) for name in names]


def store_setting(name: str, value: str, user_dir: Path | None = None) -> str:
    """Store a setting, and return its name: a window is stored under the model's id.

    Raises `SettingsError` for an unknown name, a value that is none, an unknown model that shall
    write summaries, and a file that is broken or can't be written.
    """
    name = _resolved(_checked(name))
    try:
        _parse(name, value)
        if name == "model":
            _check_summarizer(value)
        elif name == "template":
            _check_template(value)
    except ValueError as ex:
        raise SettingsError(f"{name}: {ex}") from ex
    _change(_path(user_dir), lambda stored: stored.update({name: value.strip()}))
    return name


def clear_setting(name: str, user_dir: Path | None = None) -> bool:
    """Forget a setting; with a window also what was learned. Returns whether there was any.

    Raises `SettingsError` for an unknown name, and a file that is broken or can't be written.
    """
    # Somebody who edits the file may have written an alias.
    names = {_checked(name), _resolved(name)}
    names |= {_LEARNED + model for name in names if (model := _model_in(name, _WINDOW))}

    def clear(stored: dict[str, Any]) -> None:
        for name in names:
            stored.pop(name, None)

    return _change(_path(user_dir), clear)


def remember_window(model_id: str, tokens: int, user_dir: Path | None = None) -> None:
    """Keep the context window that a provider's error has named, in tokens.

    Raises `SettingsError` for a file that is broken or can't be written.
    """
    if tokens > 0:
        _change(_path(user_dir), lambda stored: stored.update({_LEARNED + model_id: tokens}))


def _path(user_dir: Path | None) -> Path:
    if user_dir is None:
        import llm

        user_dir = Path(llm.user_dir())  # type: ignore[no-untyped-call]
    return user_dir / "compact.json"


def _load(path: Path) -> dict[str, Any]:
    """All that is in the file, also what we don't know. A missing file holds nothing."""
    try:
        # An editor on Windows may put a mark in front.
        with open(path, encoding="utf-8-sig") as file:
            stored = json.load(file)
    except FileNotFoundError:
        return {}
    except OSError as ex:
        raise SettingsError(f"{path} can't be read: {ex.strerror}. Make it readable") from ex
    except (ValueError, RecursionError) as ex:
        raise SettingsError(
            f"{path} is not JSON: {ex}. Correct it, or delete it to do without settings"
        ) from ex
    if not isinstance(stored, dict):
        raise SettingsError(
            f"{path} is no JSON object. Correct it, or delete it to do without settings"
        )
    return stored


def _stored_value(path: Path, name: str, raw: Any) -> Any:
    """What a value in the file means; None for what is not a setting of ours."""
    if not _is_setting(name) and not _model_in(name, _LEARNED):
        return None
    # As JSON says it, and as most will write it who edit the file.
    if name == "reuse-cache" and isinstance(raw, bool):
        return raw
    try:
        if not isinstance(raw, (str, int)) or isinstance(raw, bool):
            raise ValueError(f"{_written(raw)} is neither a text nor a number")
        return _parse(name, str(raw))
    except ValueError as ex:
        to_clear = _WINDOW + name.removeprefix(_LEARNED) if _model_in(name, _LEARNED) else name
        raise SettingsError(
            f"{path}: {name}: {ex}. Correct it, or forget it with "
            f"llm compact settings clear {to_clear}"
        ) from ex


def _parse(name: str, text: str) -> Any:
    """Raises `ValueError` with a line that says what fits."""
    from . import tokens

    if name in ("model", "template"):
        if not text.strip():
            told = "id of a model, or extractive" if name == "model" else "name of a template"
            raise ValueError(f"it is empty. Use the {told}")
        return text.strip()
    if name == "reuse-cache":
        if text.strip().lower() not in ("on", "off"):
            raise ValueError(f"{text!r} is neither on nor off")
        return text.strip().lower() == "on"
    return getattr(tokens, _READERS.get(name, "parse_tokens"))(text)


def _written(raw: Any) -> str:
    return raw if isinstance(raw, str) else json.dumps(raw)


def _by_model(values: Mapping[str, Any], prefix: str) -> dict[str, int]:
    return {model: value for name, value in values.items() if (model := _model_in(name, prefix))}


def _model_in(name: str, prefix: str) -> str | None:
    """The model in `window.MODEL`."""
    return name[len(prefix) :] or None if name.startswith(prefix) else None


def _is_setting(name: str) -> bool:
    return name in NAMES or _model_in(name, _WINDOW) is not None


def _checked(name: str) -> str:
    if not _is_setting(name):
        raise SettingsError(
            f"There is no setting {name!r}. Use {', '.join(NAMES)} or {_WINDOW}MODEL"
        )
    return name


def _resolved(name: str) -> str:
    """`window.ID` for `window.ALIAS`. A model need not be installed."""
    alias = _model_in(name, _WINDOW)
    if alias is None:
        return name
    import llm

    try:
        return _WINDOW + str(llm.get_model(alias).model_id)
    except llm.UnknownModelError:
        return name


def _check_template(name: str) -> None:
    """Raises `ValueError` for a template that is unknown, or can't be used for a summary."""
    from .errors import SummarizerError
    from .summarizers.template import load_template

    try:
        load_template(name.strip())
    except SummarizerError as ex:
        raise ValueError(str(ex)) from ex


def _check_summarizer(name: str) -> None:
    from .errors import SummarizerError
    from .summarizers import check_summarizer

    try:
        check_summarizer(name.strip())
    except SummarizerError as ex:
        raise ValueError(str(ex)) from None


def _change(path: Path, change: Callable[[dict[str, Any]], None]) -> bool:
    """Read, change and write while no other process does. Returns whether anything changed."""
    # A link, into a repository of dotfiles for example, stays one.
    target = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target):
            stored = _load(target)
            before = dict(stored)
            change(stored)
            if stored == before:
                return False
            _write(target, json.dumps(stored, indent=2) + "\n")
            return True
    except OSError as ex:
        raise SettingsError(f"{path} can't be written: {ex.strerror}. Nothing was changed") from ex


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The only one who writes a file, among all processes.

    The lock is SQLite's, on an empty database beside the file: it is the same on every system,
    and that of a killed process is free. The file itself can't be locked, because it is replaced;
    nor can the lock be deleted afterwards, because others may wait for it.
    """
    import sqlite3

    connection = None
    try:
        connection = sqlite3.connect(
            path.with_name(f".{path.name}.lock"), timeout=_WAIT, isolation_level=None
        )
        connection.execute("begin immediate")
    except sqlite3.Error as ex:
        if connection:
            connection.close()
        raise SettingsError(
            f"{path} can't be locked for writing: {ex}. Nothing was changed"
        ) from ex
    try:
        yield
    finally:
        connection.close()


def _write(path: Path, text: str) -> None:
    """Whoever reads the file finds the old text or the new one, whatever happens."""
    import errno
    import stat

    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected")
    # Only who holds the lock writes here: what lies here is left from a process that was killed.
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
