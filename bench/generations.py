"""What is left of a long conversation after ten compactions: rules, exact values, and words.

A made-up conversation of 1,000 turns with 20 rules of the user and 200 exact values, each of which
somebody says once, among many that only tools print. Every hundred turns it is compacted.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llm
import sqlite_utils
from llm.logs import LogStore
from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart

from llm_compact.compaction import Compaction, carry_out
from llm_compact.log import open_log
from llm_compact.plan import Wishes, plan_compaction
from llm_compact.source import read_source
from llm_compact.summarizers.extractive import Extractive
from llm_compact.summarizers.model import ModelSummarizer
from llm_compact.summary import Summarizer
from llm_compact.tokens import count_text, message_tokens
from llm_compact.values import stands_in
from llm_compact.vocabulary import counter

GENERATIONS, TURNS = 10, 100
RULES, VALUES = 20, 200
SECTION = re.compile(r"^## Asked and done\n((?:- .*\n?)+)", re.MULTILINE)

# fmt: off
_WORDS = [
    "tide", "harbour", "chart", "station", "gauge", "table", "reader", "month", "height", "storm",
    "record", "signal", "import", "report", "page", "button", "alarm", "winter", "ferry", "sensor",
]
# fmt: on
_ASKED = (
    "Please look at the {a} of the {b} and tell me why the {c} is late.",
    "What about the {a}? The {b} has been wrong since the {c} was replaced.",
    "Good. Now the {a}, and after that the {b} beside the {c}.",
    "Can you find out who changed the {a} before the {b} went silent?",
)
_SAID = (
    "I looked at the {a}: it waits for the {b}, which nobody starts before the {c} is there.",
    "The {a} is fixed. The {b} was compared with the {c}, and that could never be true.",
    "It was the {a} after all, because the {b} and the {c} share a clock.",
    "The {a} works again; the {b} still has to be told of the {c} by hand.",
)
_RULES = (
    "Never touch the {a} of the {b} without asking me.",
    "From now on, always tell me the {a} before the {b}.",
    "Always answer in two sentences when I ask about the {a} or the {b}.",
    "Please do not rename the {a} again, whatever happens to the {b}.",
)
_PLANTED = (
    "src/{a}/{b}_{c}.py", "https://{a}.example/{b}/{n}", "{A}-{n}", "{a}_{b}_{n}", "{n} ms",
    "v{d}.{e}.{n}", "{hex}", "--{a}-{b}-{c}", "/srv/{a}/{b}/{c}.toml", "2031-0{d}-1{e}T0{d}:{n2}",
)  # fmt: skip
_PRINTED = (
    "[INFO] {a} {hex} took {n} ms in /var/lib/{a}/{b}/{n}.db",
    "{A}-{n} {a}_{c}_{n2} {hex} ok",
    "/usr/share/{b}/{c}/{n}.json: {n} rows, {n2} skipped",
)


@dataclass
class Conversation:
    """The next turns of it, and what was planted in them."""

    draw: random.Random = field(default_factory=lambda: random.Random(20_310_415))
    turn: int = 0
    rules: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def next(self) -> list[Message]:
        """A request, a tool call and its result, and the answer."""
        self.turn += 1
        asked, said = self._filled(_ASKED), self._filled(_SAID)
        arguments = {"query": self._filled(("{a} {b} {c}",))}
        if self.turn % (GENERATIONS * TURNS // RULES) == 7:
            asked += " " + self._planted(_RULES, self.rules)
        if self.turn % (GENERATIONS * TURNS // VALUES) == 3:
            value = self._planted(_PLANTED, self.values)
            who = len(self.values) % 3
            asked += f" I mean {value}." if who == 0 else ""
            said += f" It is {value} now." if who == 1 else ""
            arguments |= {"name": value} if who == 2 else {}
        id = f"call_{self.turn}"
        printed = "\n".join(self._filled(_PRINTED) for _ in range(self.draw.randint(2, 14)))
        return [
            llm.user(asked),
            llm.assistant(ToolCallPart(name="search", arguments=arguments, tool_call_id=id)),
            llm.tool_message(ToolResultPart(name="search", output=printed, tool_call_id=id)),
            llm.assistant(" ".join([said, *(self._filled(_SAID) for _ in range(2))])),
        ]

    def _planted(self, patterns: Sequence[str], known: list[str]) -> str:
        while (text := self._filled(patterns)) in known:
            pass
        known.append(text)
        return text

    def _filled(self, patterns: Sequence[str]) -> str:
        draw = self.draw
        a, b, c = draw.sample(_WORDS, 3)
        values = {
            **{"a": a, "b": b, "c": c, "A": a.upper()},
            **{"n": str(draw.randint(100, 9_999)), "n2": str(draw.randint(10, 59))},
            **{"d": str(draw.randint(1, 9)), "e": str(draw.randint(0, 9))},
            "hex": f"{draw.getrandbits(48):012x}",
        }
        return draw.choice(patterns).format_map(values)


class Forgetful(llm.Model):
    """The worst case: whatever it is sent, it tells no rule and no value."""

    model_id = "forgetful"
    sent = 0

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str]:
        self.sent += count_text(f"{prompt.system}\n{prompt.prompt}")
        yield self.answer(str(prompt.prompt))

    def answer(self, prompt: str) -> str:
        return "## Goal\nThe user wants the harbour to work.\n\n## Asked and done\n" + "\n".join(
            f"- The work on the {word} went on, and what was found was told." for word in _WORDS
        )


class Copyist(Forgetful):
    """Copies what the record has as done, and adds each request: nothing ever gets shorter."""

    model_id = "copyist"

    def answer(self, prompt: str) -> str:
        done = SECTION.search(prompt)
        asked = re.findall(r"user\n(.+)", prompt)
        items = [*(done[1].splitlines() if done else ()), *(f"- {text}" for text in asked)]
        return "\n".join(["## Goal\nA harbour that works.\n\n## Asked and done", *items])


@dataclass(frozen=True)
class Row:
    """A conversation after one of its compactions."""

    generation: int
    rules: int
    values: int
    summary: int
    "Tokens."
    most: int
    "Tokens that the summary may have, as its summarizer is told."
    sent: float
    "What the summarizer was sent so far, as a share of the tokens of all that was said."
    first: int
    "Words of the summary that tell what was asked before the first compaction."


def main() -> None:
    print(f"Tokens counted with {counter().name}.")
    with tempfile.TemporaryDirectory() as directory:
        os.environ["LLM_USER_PATH"] = directory
        for model in (None, Forgetful(), Copyist()):
            name = model.model_id if model else "extractive"
            rows = list(generations(model, Path(directory) / f"{name}.db"))
            if "--json" in sys.argv:
                print(json.dumps({"summarizer": name, "rows": [vars(row) for row in rows]}))
            else:
                show(name, rows)


def show(name: str, rows: Sequence[Row]) -> None:
    print(f"\n{name}\n  n  rules      values   tokens (of)     sent   words of the first part")
    for row in rows:
        said = row.generation * TURNS
        print(
            f"{row.generation:3}{row.rules:4} of{said * RULES // (GENERATIONS * TURNS):3}"
            f"{row.values:5} of{said * VALUES // (GENERATIONS * TURNS):4}"
            f"{row.summary:7} {row.most:5} {row.sent:8.2f}{row.first:6}"
        )


def generations(model: Forgetful | None, database: Path) -> Iterator[Row]:
    conversation = Conversation()
    summarizer: Summarizer = ModelSummarizer(model) if model else Extractive()
    said = 0
    asked_first: list[str] = []
    for generation in range(1, GENERATIONS + 1):
        turns = [conversation.next() for _ in range(TURNS)]
        said += sum(message_tokens(message) for turn in turns for message in turn)
        asked_first = asked_first or [text_of(turn[0]) for turn in turns]
        log_turns(turns, database)
        most, done = compacted(database, summarizer)
        context = context_of(database, done)
        yield Row(
            generation=generation,
            rules=sum(rule in context for rule in conversation.rules),
            values=sum(stands_in(value, context) for value in conversation.values),
            summary=count_text(done.summary),
            most=most,
            sent=(model.sent if model else 0) / said,
            first=sum(len(asked.split()) for asked in asked_first if asked in done.summary),
        )


def log_turns(turns: Sequence[Sequence[Message]], database: Path) -> None:
    """Turn by turn behind what the newest conversation has, as llm logs them."""
    db = sqlite_utils.Database(database)
    store = LogStore(db)
    with db.atomic():
        threads = list(db.query("select id from threads order by id desc limit 1"))
        id = threads[0]["id"] if threads else store.create_thread(name="harbour")
        chain = store.thread_messages(id) if threads else []
        for turn in turns:
            chain += turn
            response = llm.Response.from_dict(
                {
                    "model": "forgetful",
                    "prompt": {"messages": [message.to_dict() for message in chain[:-1]]},
                    "messages": [chain[-1].to_dict()],
                },
                model=Forgetful(),
            )
            store.log(response, id)
    db.close()


def compacted(database: Path, summarizer: Summarizer) -> tuple[int, Compaction]:
    with open_log(database) as db:
        plan = plan_compaction(read_source(db, None), Wishes())
        return plan.head.room, carry_out(db, plan, summarizer)


def context_of(database: Path, done: Compaction) -> str:
    """All that a model gets that goes on from here."""
    db = sqlite_utils.Database(database)
    messages = LogStore(db).thread_messages(done.id)
    db.close()
    return "\n".join(json.dumps(message.to_dict(), ensure_ascii=False) for message in messages)


def text_of(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


if __name__ == "__main__":
    main()
