"""Is this answer fit to be stored as a summary?"""

from __future__ import annotations

import re
import zlib

from .errors import LONGER_SUMMARY, SummarizerError, UnfitAnswer
from .language import is_written_in, words
from .redaction import redacted
from .summary import Answer

# What providers call it when a model stopped at its length limit, or would not answer.
_CUT_OFF = {"length", "max_tokens", "max_output_tokens", "model_length", "max_length"}
_WITHHELD = {"content_filter", "refusal", "safety", "recitation", "prohibited_content", "blocklist"}

_REFUSAL = re.compile(
    r"(i['’]?m sorry|sorry|i apologi[sz]e|i can(no|['’])t|i( a|['’])m (not able|unable)|as an ai"
    r"|抱歉|对不起|我无法|申し訳|죄송)",
    re.IGNORECASE,
)
_REFUSAL_LENGTH = 400
_WORD = re.compile(r"\w")
_TOOL_SYNTAX = re.compile(r"\s*(<tool_call>|<function_calls?>|<\|tool|\[TOOL_CALLS\]|<invoke )")
# A model may copy the lines that tell who speaks: they are ours, and no part of a summary.
_BOUNDARY_LINE = re.compile(r"^===(?:[0-9a-f]{2}){2,6}===.*\n?", re.MULTILINE)

# What a chat template, or a reader of a transcript, takes for the beginning of a turn.
_TEMPLATE_TOKEN = re.compile(
    r"<\|([^|<>\s]{3,40})\|>|<｜([^｜<>\n]{1,40})｜>|\[(/?INST|/?SYSTEM_PROMPT|/?AVAILABLE_TOOLS)\]"
    r"|<<(/?SYS)>>|<(/?s|start_of_turn|end_of_turn|bos|eos)>"
)
_TAG = re.compile(
    r"(?<![/@])<(/?(?:system-reminder|system|user|assistant|human|tool|developer|transcript"
    r"|conversation|summary|record|tool_(?:call|result|response)s?|function_(?:call|result)s?))"
    r"\b[^<>\n]{0,80}>(?![/@])",
    re.IGNORECASE,
)
# Half of a character, as JSON can have it that a model cut off, is none that a log can store.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_FENCE_LINE = re.compile(
    r"^[ \t]*={3,}[ \t]*((?:(?:begin|end|boundary)\b|\[\d+\]).*)$", re.M | re.I
)
_SPEAKER = re.compile(
    r"^([ \t]*)[*_]{0,2}(system|developer|user|human|assistant|ai|tool|系统|用户|助手|システム"
    r"|ユーザー|アシスタント|시스템|사용자|어시스턴트)[ \t]*[:：][*_]{0,2}[ \t]*"
    r"|^([ \t]*[-*>#]+[ \t]+)[*_]{0,2}(system|developer|系统|システム|시스템)[ \t]*[:：][*_]{0,2}"
    r"[ \t]*"
    r"|^([ \t]*)#{1,6}[ \t]*(system|developer|user|human|assistant|instruction|response)[ \t]*"
    r":?[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
# Code, quotes and headings are not the summarizer's own words.
_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|„[^“\n]*“|「[^」\n]*」|«[^»\n]*»"
    r"|https?://\S+|^#[^\n]*",
    re.DOTALL | re.MULTILINE,
)

# Our counts of a small model's tokens are too low rather than too high.
_NEARLY_FULL = 0.8
# Ordinary text is packed to a half or a third. What says the same thing again and again goes lower.
_RAMBLING = 0.12
_RAMBLING_LENGTH = 400
_THINKING = re.compile(r"\A\s*<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL)


def summary_text(answer: Answer) -> str:
    """The summary in a summarizer's answer.

    Raises `UnfitAnswer` for everything that must not become the memory of a conversation: an
    answer that is empty, only reasoning, a tool call, cut off by its length limit, or a refusal.
    """
    text = _BOUNDARY_LINE.sub("", without_thinking(answer.text).strip()).strip()
    stop = (answer.stop_reason or "").lower()
    if answer.tool_calls or _TOOL_SYNTAX.match(text):
        raise UnfitAnswer("answered with a tool call instead of a summary")
    if stop in _CUT_OFF:
        raise UnfitAnswer(
            "was cut off by its length limit. Allow it a longer answer with -o, or use another "
            "model with -m"
        )
    if stop in _WITHHELD:
        raise UnfitAnswer(f"withheld its answer ({answer.stop_reason})")
    # Punctuation, signs and an empty list of JSON's tell nothing.
    if not _WORD.search(text) or text == "null":
        only_reasoning = not text and (answer.has_reasoning or answer.text.strip())
        raise UnfitAnswer(
            "answered with reasoning only" if only_reasoning else "answered with nothing"
        )
    if len(text) < _REFUSAL_LENGTH and "\n#" not in f"\n{text}" and _REFUSAL.match(text):
        raise UnfitAnswer(f"refused: {' '.join(text.split())}")
    return text


def check_end(answer: Answer, tokens: int, window: int) -> None:
    """Raises `UnfitAnswer` for an answer that went round in circles until the window was full.

    `tokens` is the size of prompt and answer. Small local models do that, and their adapters do
    not report why they stopped.
    """
    if tokens > _NEARLY_FULL * window and _is_rambling(answer.text):
        raise UnfitAnswer("repeated itself until its context window was full")


def _is_rambling(text: str) -> bool:
    data = text.encode("utf-8", "replace")
    packed = len(zlib.compress(data)) / max(1, len(data))
    return len(data) > _RAMBLING_LENGTH and packed < _RAMBLING


def harmless(text: str) -> str:
    """The summary without secrets, and without anything that could pass for a turn.

    A summary is sent with each request from now on. What begins a turn in the chat template of
    some model, or for a reader, is told in other characters.
    """
    text = redacted(storable(text))
    text = _TEMPLATE_TOKEN.sub(lambda match: f"({match[match.lastindex or 0]})", text)
    text = _TAG.sub(r"(\1)", _FENCE_LINE.sub(r"\1", text))
    return _SPEAKER.sub(_as_name, text)


def storable(text: str) -> str:
    """The text with what a log can't store told as missing characters."""
    return _UNSTORABLE.sub("\ufffd", text)


def _as_name(speaker: re.Match[str]) -> str:
    indent, name = [group for group in speaker.groups() if group is not None]
    return f"{indent}({name}) "


def check_language(summary: str, language: str) -> None:
    """Raises `SummarizerError` for a summary that is clearly not in a language."""
    if not is_in_language(summary, language):
        name = words(language)["name"]
        raise SummarizerError(
            f"did not write in {name}, which is the language of the conversation. Use another "
            "model with -m"
        )


def is_in_language(summary: str, language: str) -> bool:
    """Whether a summary's own words may be in a language, whatever it quotes."""
    return is_written_in(language, _NO_PROSE.sub(" ", summary))


def is_boundary_line(line: str) -> bool:
    """Whether a line of an answer was copied from the structure of the transcript."""
    return bool(_BOUNDARY_LINE.fullmatch(line))


def without_thinking(text: str) -> str:
    """The text without the reasoning that local models write in front of it."""
    return _THINKING.sub("", text, count=1)


def check_length(tokens: int, most: int) -> None:
    """Raises `SummarizerError` for a summary that is longer than it may be (tokens)."""
    if tokens > most:
        raise SummarizerError(
            f"wrote {tokens:,} tokens, and only {most:,} are allowed. {LONGER_SUMMARY}"
        )
