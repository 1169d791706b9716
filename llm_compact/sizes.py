"""The size of each message of a conversation, in a time that does not grow with its length.

Counting takes as long as tokenizing, and no decision needs the exact size of an old message: only
what many of them have in sum. So of a long conversation the newest messages are counted, because
a compaction keeps these, and of the rest a sample. On real conversations the whole is within
2.5 % of the count, and a quarter of one within 3 % in 9 of 10 cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from llm.parts import Message

from .tokens import Content, content_of, count_text

COUNTED = 48_000
"Characters of the newest messages, which are counted one by one."
SAMPLE = 96_000
"Characters that are counted of all the others together."
BLOCK = 750
"The sample is taken in blocks of so many characters, at even distances."
STRETCHES = 16
"The sample tells so many parts of the conversation apart."


def message_sizes(messages: Sequence[Message]) -> list[int]:
    """The plain count of each message, counted if it is new or the conversation is short."""
    contents = list(map(content_of, messages))
    lengths = [sum(len(text) for _, text in content.texts) for content in contents]
    counted_from = 0
    if sum(lengths) > COUNTED + SAMPLE:
        behind = accumulate(reversed(lengths))
        counted_from = len(lengths) - sum(length <= COUNTED for length in behind)
    old = _sampled_sizes(contents[:counted_from], lengths[:counted_from])
    return old + [content.tokens for content in contents[counted_from:]]


def _sampled_sizes(contents: Sequence[Content], lengths: Sequence[int]) -> list[int]:
    """Sizes from the bytes of each text, and what a byte of such text costs in the sample.

    Prose, JSON and what tools print cost differently, and so does what is said in the parts of a
    conversation: there is a sample of each kind of text in each stretch. It is bytes because these
    tell more: a character costs a quarter of a token in one script and a whole one in another.
    """
    whole = sum(lengths)
    step = max(BLOCK, whole * BLOCK // SAMPLE)
    stretches = [end * STRETCHES // (whole + 1) for end in accumulate(lengths)]
    texts = defaultdict(list)
    for content, stretch in zip(contents, stretches, strict=True):
        for kind, text in content.texts:
            texts[stretch, kind].append(text)
    costs = {key: _tokens_per_byte("".join(some), step) for key, some in texts.items()}
    return [
        content.besides
        + round(sum(costs[stretch, kind] * _bytes(text) for kind, text in content.texts))
        for content, stretch in zip(contents, stretches, strict=True)
    ]


def _tokens_per_byte(text: str, step: int) -> float:
    sample = "".join(text[start : start + BLOCK] for start in range(0, len(text), step))
    return count_text(sample) / max(1, _bytes(sample))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
