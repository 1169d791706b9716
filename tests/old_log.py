"""Logs as versions of llm before 0.32 left them: their tables, and rows as they wrote them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llm
import sqlite_utils
from llm.migrations import MIGRATIONS, ensure_migrations_table, migrate
from llm.utils import ensure_fragment, monotonic_ulid

LAST_MIGRATION = {"0.13": "m011", "0.20": "m013", "0.27": "m021", "0.31": "m022", "now": "m999"}
"The newest migration that a version knew."


class OldLog:
    """Writes conversations into a log with the tables of that version."""

    def __init__(self, path: Path, version: str = "0.31") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.db = sqlite_utils.Database(path)
        if version == "now":
            migrate(self.db)
            return
        ensure_migrations_table(self.db)
        for migration in MIGRATIONS:
            if migration.__name__[:4] <= LAST_MIGRATION[version]:
                migration(self.db)
                self.db["_llm_migrations"].insert({"name": migration.__name__, "applied_at": ""})

    def conversation(self, id: str | None = None, model: str = "chatty") -> str:
        id = id or str(monotonic_ulid()).lower()
        self.db["conversations"].insert({"id": id, "name": "Old talk", "model": model})
        return id

    def response(
        self,
        conversation_id: str,
        prompt: str | None,
        answer: str,
        *,
        system: str | None = None,
        fragments: Sequence[str] = (),
        system_fragments: Sequence[str] = (),
        attachments: Sequence[llm.Attachment] = (),
        tools: Sequence[tuple[str, str | None]] = (),
        calls: Sequence[tuple[str, str, dict[str, Any]]] = (),
        results: Sequence[dict[str, Any]] = (),
        model: str = "chatty",
        **columns: Any,
    ) -> str:
        """`tools` are (name, plugin), `calls` (id, name, arguments), `results` rows."""
        db, id = self.db, str(monotonic_ulid()).lower()
        row = {
            "id": id,
            "model": model,
            "prompt": prompt,
            "system": system,
            "options_json": "{}",
            "response": answer,
            "conversation_id": conversation_id,
            **columns,
        }
        db["responses"].insert(row)
        for table, texts in (("prompt_", fragments), ("system_", system_fragments)):
            for order, text in enumerate(texts):
                ids = {"response_id": id, "fragment_id": ensure_fragment(db, text)}
                db[f"{table}fragments"].insert({**ids, "order": order})
        for order, attachment in enumerate(attachments):
            names = ("type", "path", "url", "content")
            fields = {name: getattr(attachment, name) for name in names}
            db["attachments"].insert({"id": attachment.id(), **fields}, replace=True)
            ids = {"response_id": id, "attachment_id": attachment.id()}
            db["prompt_attachments"].insert({**ids, "order": order})
        for name, plugin in tools:
            tool = {"hash": name, "name": name, "description": "", "input_schema": "{}"}
            db["tools"].insert({**tool, "plugin": plugin}, ignore=True)
            tool_id = next(db["tools"].rows_where("name = ?", [name]))["id"]
            db["tool_responses"].insert({"tool_id": tool_id, "response_id": id})
        for call_id, name, arguments in calls:
            call = {"name": name, "arguments": json.dumps(arguments), "tool_call_id": call_id}
            db["tool_calls"].insert({"response_id": id, **call})
        for result in results:
            db["tool_results"].insert({"response_id": id, **result})
        return id

    def long_talk(self, id: str | None = None, exchanges: int = 6) -> str:
        """As `long_talk` of conftest.py, in the old tables."""
        from conftest import LONG

        id = self.conversation(id)
        for n in range(exchanges):
            system = "You know the tides." if n == 0 else None
            answer = LONG.format(place="Ribe", n=n)
            self.response(id, f"When was high water, {n}?", answer, system=system)
        return id
