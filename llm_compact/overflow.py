"""How providers say that a request does not fit the context window: one table."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Each pattern may name the window (tokens). Rate limits speak of tokens, too: a pattern has to say
# that a context, a prompt or an input is too long, not only that there are too many tokens.
_PATTERNS = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # OpenAI, vLLM, OpenRouter and most that imitate them
        r"maximum context length is (?P<window>[\d,]+)",
        r"exceed(?:s|ed)? (?:the )?(?:model's |this model's )?(?:maximum |max )?context"
        r" (?:window|length)(?: (?:of |\()(?P<window>[\d,]+))?",
        r"context[_ ]length[_ ]exceeded",
        r"input tokens exceed the configured limit of (?P<window>[\d,]+)",
        # vLLM, SGLang, Together
        r"longer than the (?:maximum model|model's context) length"
        r"(?: (?:of |\()(?P<window>[\d,]+))?",
        # llama-cpp-python
        r"requested tokens \([\d,]+\) exceed context window of (?P<window>[\d,]+)",
        # Anthropic, also through Bedrock
        r"prompt is too long(?:: [\d,]+ tokens > (?P<window>[\d,]+) maximum)?",
        r"exceed context limit: [\d,]+ \+ [\d,]+ > (?P<window>[\d,]+)",
        # Gemini
        r"input token count.{0,20} exceeds the maximum number of tokens allowed"
        r"(?: \(?(?P<window>[\d,]+))?",
        r"input token count is [\d,]+ but model only supports up to (?P<window>[\d,]+)",
        # Mistral
        r"too large for model with (?P<window>[\d,]+) maximum context length",
        # llama.cpp server
        r"exceeds the available context size(?: \((?P<window>[\d,]+) tokens\))?",
        # Ollama
        r"prompt too long; exceeded (?:max )?context length",
        # LM Studio
        r"loaded with context length of only (?P<window>[\d,]+)",
        # Groq
        r"reduce the length of the messages",
        # Bedrock
        r"input is too long for requested model",
        r"number of input tokens exceeds maximum length",
        r"too many input tokens\. max input tokens: (?P<window>[\d,]+)",
        # xAI
        r"maximum prompt length is (?P<window>[\d,]+)",
        # GitHub Copilot
        r"prompt token count of [\d,]+ exceeds the limit of (?P<window>[\d,]+)",
    )
]


@dataclass(frozen=True)
class Overflow:
    """A request that was too long, and the window (tokens) where the provider names it."""

    window: int | None = None


def overflow_in(message: str) -> Overflow | None:
    """What an error message says about the context window; None if it is about something else."""
    found = [match for pattern in _PATTERNS if (match := pattern.search(message))]
    if not found:
        return None
    named = [m["window"] for m in found if "window" in m.re.groupindex and m["window"]]
    return Overflow(int(named[0].replace(",", "")) if named else None)
