"""What a compaction costs without the model's time, side by side with others.

Times are medians of several rounds in one process; within a round all take their turn, and a ratio
is the median of the rounds' ratios, so that a machine that is busy for a while is busy for all.
Run it with `make bench`.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bpe_openai
import llm
import sqlite_utils
import tiktoken
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from llm.logs import LogStore
from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart
from synthetic import SYSTEM, Line, conversation
from tiktoken_ext import openai_public

from llm_compact.compaction import carry_out
from llm_compact.estimate import estimate
from llm_compact.log import open_log
from llm_compact.plan import Wishes, plan_compaction
from llm_compact.source import read_source
from llm_compact.summarizers.extractive import Extractive
from llm_compact.summarizers.model import ModelSummarizer
from llm_compact.summary import Answer, Head, Summarizer, Watch
from llm_compact.vocabulary import Counter, find_counter

SIZES = {100: 15, 1_000: 7, 10_000: 5}
"Rounds for each number of messages."
MEMORY_MESSAGES = 1_532
"Of the synthetic conversation these are 368k tokens."
STARTS = 25
"Pairs of processes, to measure what the plugin costs each llm command."

ANSWER = "## Done so far\n\n" + "The parser was fixed and the tests pass. " * 20
OURS = "llm-compact, scripted model"
OURS_EXACT = "the same, counting with bpe-openai"
OURS_EXTRACTIVE = "llm-compact, extractive"
TOKENIZER = "tiktoken, o200k_base: tokenize the text once"
FAST_TOKENIZER = "bpe-openai, o200k_base: the same"
LANGCHAIN = "LangChain SummarizationMiddleware, its defaults"
LANGCHAIN_ALL = "the same with trim_tokens_to_summarize=None"
LAST_SIX = 'a plain "keep the last 6 messages"'

ESTIMATE = Counter("estimate", estimate)
"How most people count: bpe-openai is here to measure against."

Times = dict[str, float]
"Seconds by what was done."


class ScriptedModel(llm.Model):
    """Answers at once."""

    model_id = "scripted"
    can_stream = True

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None = None,
    ) -> Iterator[str]:
        yield ANSWER


class Timed:
    """A summarizer, and how long it took."""

    def __init__(self, summarizer: Summarizer) -> None:
        self._summarizer = summarizer
        self.name, self.prompt_version = summarizer.name, summarizer.prompt_version
        self.seconds = 0.0

    def summarize(self, head: Head, watch: Watch) -> Answer:
        started = time.perf_counter()
        answer = self._summarizer.summarize(head, watch)
        self.seconds = time.perf_counter() - started
        return answer


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        print(*peak_memory(sys.argv[2], Path(sys.argv[3])))
        return
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, medians.")
    with tempfile.TemporaryDirectory() as directory:
        # The user's own options and models stay out of it.
        os.environ["LLM_USER_PATH"] = directory
        for count, rounds in SIZES.items():
            show_times(count, measured(count, rounds, Path(directory) / f"{count}.db"))
        show_memory(Path(directory) / "memory.db")
        show_start()


# -- time ------------------------------------------------------------------


def measured(count: int, rounds: int, database: Path) -> list[Times]:
    lines = list(conversation(count))
    write_log(lines, database)
    texts = [text for line in lines for text in line.texts()]
    langchain_messages = [langchain_message(line) for line in lines]
    dicts = [line_dict(line) for line in lines]
    encoding, exact = bpe_openai.get_encoding("o200k_base"), find_counter()
    contenders: dict[str, Callable[[], object]] = {
        TOKENIZER: lambda: tokenize(tiktoken_encoding(), texts),
        FAST_TOKENIZER: lambda: tokenize(encoding, texts),
        OURS: lambda: compact_log(database, ModelSummarizer(ScriptedModel())),
        OURS_EXACT: lambda: compact_log(database, ModelSummarizer(ScriptedModel()), exact),
        OURS_EXTRACTIVE: lambda: compact_log(database, Extractive()),
        LANGCHAIN: lambda: langchain_compact(langchain_messages),
        LANGCHAIN_ALL: lambda: langchain_compact(langchain_messages, trim_tokens_to_summarize=None),
        LAST_SIX: lambda: keep_last_six(dicts),
    }
    # Nobody's garbage collections shall go through the conversations of all the others.
    gc.collect()
    gc.freeze()
    # The first round, which fills caches and loads modules, does not count.
    return [one_round(contenders) for _ in range(rounds + 1)][1:]


def one_round(contenders: Mapping[str, Callable[[], object]]) -> Times:
    times: Times = {}
    for name, contend in contenders.items():
        gc.collect()
        started = time.perf_counter()
        stages = contend()
        times[name] = time.perf_counter() - started
        if isinstance(stages, dict):
            times |= {f"{name}: {stage}": seconds for stage, seconds in stages.items()}
    return times


def compact_log(database: Path, summarizer: Summarizer, counter: Counter = ESTIMATE) -> Times:
    """The whole way from the log to the log."""
    with patch("llm_compact.tokens.counter", lambda: counter):
        return _compact_log(database, summarizer)


def _compact_log(database: Path, summarizer: Summarizer) -> Times:
    timed = Timed(summarizer)
    clock = [time.perf_counter()]
    with open_log(database) as db:
        # The compactions of earlier rounds are newer conversations of the same log.
        source = read_source(db, "measured")
        clock.append(time.perf_counter())
        plan = plan_compaction(source, Wishes(again=True))
        clock.append(time.perf_counter())
        carry_out(db, plan, timed)
        clock.append(time.perf_counter())
    read, planned, carried_out = (b - a for a, b in pairwise(clock))
    return {
        "read the log": read,
        "cut and count": planned,
        "summarize": timed.seconds,
        "check and store": carried_out - timed.seconds,
    }


@cache
def tiktoken_encoding() -> tiktoken.Encoding:
    """tiktoken's own o200k_base, with the vocabulary of bpe-openai, as it would be downloaded."""
    encoding = bpe_openai.get_encoding("o200k_base")
    values = filter(None, encoding.token_byte_values())
    ranks = {value: encoding.encode_single_token(value) for value in values}
    with patch("tiktoken_ext.openai_public.load_tiktoken_bpe", lambda *args, **kwargs: ranks):
        return tiktoken.Encoding(**openai_public.o200k_base())


def tokenize(encoding: Any, texts: Iterable[str]) -> None:
    sum(len(encoding.encode_ordinary(text)) for text in texts)


def langchain_compact(messages: Sequence[AnyMessage], **options: Any) -> None:
    middleware: Any = SummarizationMiddleware(
        model=FakeListChatModel(responses=[ANSWER]), trigger=("messages", 1), **options
    )
    assert middleware.before_model({"messages": list(messages)}, None)


def keep_last_six(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What many write themselves: the text of the older messages goes into one prompt."""
    older, recent = messages[:-6], messages[-6:]
    prompt = "Summarize:\n" + "\n".join(f"{m['role']}: {m['content']}" for m in older)
    summary = ANSWER if prompt else ""
    return [{"role": "user", "content": f"Summary so far: {summary}"}, *recent]


def show_times(count: int, rounds: Sequence[Times]) -> None:
    print(f"\n| {count:,} messages | ms | of tokenizing |\n| --- | ---: | ---: |")
    for name in (TOKENIZER, *(n for n in rounds[0] if n != TOKENIZER)):
        ratio = statistics.median(times[name] / times[TOKENIZER] for times in rounds)
        milliseconds = 1_000 * statistics.median(times[name] for times in rounds)
        ours, _, stage = name.partition(": ")
        if stage and ours == OURS_EXACT:
            continue
        shown = f"… {stage}" if stage and ours in (OURS, OURS_EXTRACTIVE) else name
        print(f"| {shown} | {milliseconds:,.1f} | {ratio:.2f} |")


# -- the same conversation in everybody's form -----------------------------


def llm_message(line: Line) -> Message:
    if line.role == "tool":
        part: Any = ToolResultPart(name=line.tool, output=line.text, tool_call_id=line.call)
    elif line.tool:
        part = ToolCallPart(name=line.tool, arguments=line.arguments, tool_call_id=line.call)
    else:
        part = TextPart(text=line.text)
    return Message(role=line.role, parts=[part])  # type: ignore[arg-type]


def langchain_message(line: Line) -> AnyMessage:
    if line.role == "tool":
        return ToolMessage(content=line.text, tool_call_id=line.call)
    if line.role == "user":
        return HumanMessage(content=line.text)
    calls = [{"name": line.tool, "args": line.arguments, "id": line.call}] if line.tool else []
    return AIMessage(content=line.text, tool_calls=calls)


def line_dict(line: Line) -> dict[str, Any]:
    return {"role": line.role, "content": line.text, "arguments": line.arguments}


def write_log(lines: Iterable[Line], database: Path) -> None:
    """A log with one conversation, whose last answer is its only turn."""
    system = Message(role="system", parts=[TextPart(text=SYSTEM)])
    messages = [system, *(llm_message(line) for line in lines)]
    db = sqlite_utils.Database(database)
    store = LogStore(db)
    with db.atomic():
        response = llm.Response.from_dict(
            {
                "model": "scripted",
                "prompt": {"messages": [message.to_dict() for message in messages[:-1]]},
                "messages": [messages[-1].to_dict()],
            },
            model=ScriptedModel(),
        )
        store.log(response, store.create_thread(name="measured", id="measured"))
    db.close()


# -- memory ----------------------------------------------------------------


def show_memory(database: Path) -> None:
    write_log(conversation(MEMORY_MESSAGES), database)
    encoding = bpe_openai.get_encoding("o200k_base")
    texts = [text for line in conversation(MEMORY_MESSAGES) for text in line.texts()]
    tokens = sum(len(encoding.encode_ordinary(text)) for text in texts)
    size = sum(len(text.encode()) for text in texts)
    print(
        f"\n| {tokens:,} tokens ({size / 1e6:.1f} MB of text) | peak memory, MB | Python's, MB |"
        "\n| --- | ---: | ---: |"
    )
    for name in (OURS, OURS_EXTRACTIVE, LANGCHAIN, LANGCHAIN_ALL, LAST_SIX):
        done = subprocess.run(
            [sys.executable, __file__, "--memory", name, str(database)],
            capture_output=True,
            text=True,
            check=True,
        )
        peak, allocated = map(float, done.stdout.split())
        print(f"| {name} | {peak:.1f} | {allocated:.1f} |")


def peak_memory(name: str, database: Path) -> tuple[float, float]:
    """MB of the process above what it had with everything imported, and MB that Python allocated.

    Holding the conversation counts: ours is read from the log, the others' is made message by
    message.
    """
    small = database.with_name("100.db")

    def work(log: Path, messages: int) -> None:
        lines = conversation(messages)
        if name == OURS:
            compact_log(log, ModelSummarizer(ScriptedModel()))
        elif name == OURS_EXTRACTIVE:
            compact_log(log, Extractive())
        elif name == LAST_SIX:
            keep_last_six([line_dict(line) for line in lines])
        else:
            options = {} if name == LANGCHAIN else {"trim_tokens_to_summarize": None}
            langchain_compact([langchain_message(line) for line in lines], **options)

    # A small one first, so that modules, prompts and caches are no part of it.
    work(small, 100)
    before = resident_peak()
    work(database, MEMORY_MESSAGES)
    peak = resident_peak() - before
    tracemalloc.start()
    work(database, MEMORY_MESSAGES)
    return peak / 1e6, tracemalloc.get_traced_memory()[1] / 1e6


def resident_peak() -> int:
    """Bytes, from Linux's /proc: getrusage() still tells the parent's peak after a fork."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


# -- every llm command pays for a plugin -----------------------------------


def show_start() -> None:
    print("\n| llm with the plugin | ms | of llm without |\n| --- | ---: | ---: |")
    for arguments in (["--version"], ["models", "default"], ["logs", "path"]):
        pairs = [(start(arguments, ""), start(arguments, "llm-compact")) for _ in range(STARTS)]
        ratio = statistics.median(with_it / without for without, with_it in pairs)
        milliseconds = 1_000 * statistics.median(with_it for _, with_it in pairs)
        print(f"| llm {' '.join(arguments)} | {milliseconds:,.1f} | {ratio:.3f} |")
    imported = statistics.median(import_seconds() for _ in range(STARTS))
    print(f"| import llm_compact, after llm.cli | {1_000 * imported:,.2f} | |")


def start(arguments: Sequence[str], plugins: str) -> float:
    """Seconds of a whole llm process."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        env={**os.environ, "LLM_LOAD_PLUGINS": plugins},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def import_seconds() -> float:
    code = (
        "import time, llm.cli; started = time.perf_counter(); import llm_compact; "
        "print(time.perf_counter() - started)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LLM_LOAD_PLUGINS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
