"""Is this answer fit to be stored as a summary?"""

from __future__ import annotations

import re

from .errors import SummarizerError
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
_TOOL_SYNTAX = re.compile(r"\s*(<tool_call>|<function_calls?>|<\|tool|\[TOOL_CALLS\]|<invoke )")
_THINKING = re.compile(r"\s*<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL)


def summary_text(answer: Answer) -> str:
    """The summary in a summarizer's answer.

    Raises `SummarizerError` for everything that must not become the memory of a conversation: an
    answer that is empty, only reasoning, a tool call, cut off by its length limit, or a refusal.
    """
    text = without_thinking(answer.text)
    stop = (answer.stop_reason or "").lower()
    if answer.tool_calls or _TOOL_SYNTAX.match(text):
        raise SummarizerError("answered with a tool call instead of a summary")
    if stop in _CUT_OFF:
        raise SummarizerError(
            "was cut off by its length limit. Allow it a longer answer with -o, or use another "
            "model with -m"
        )
    if stop in _WITHHELD:
        raise SummarizerError(f"withheld its answer ({answer.stop_reason})")
    if not text:
        only_reasoning = answer.has_reasoning or answer.text.strip()
        raise SummarizerError(
            "answered with reasoning only" if only_reasoning else "answered with nothing"
        )
    if len(text) < _REFUSAL_LENGTH and "\n#" not in f"\n{text}" and _REFUSAL.match(text):
        raise SummarizerError(f"refused: {' '.join(text.split())}")
    return text


def without_thinking(text: str) -> str:
    """The text without the reasoning that local models write in front of it."""
    return _THINKING.sub("", text, count=1).strip()


def check_length(tokens: int, most: int) -> None:
    """Raises `SummarizerError` for a summary that is longer than it may be (tokens)."""
    if tokens > most:
        raise SummarizerError(
            f"wrote {tokens:,} tokens, and --max-summary allows {most:,}. Allow more, or use "
            "another model with -m"
        )
