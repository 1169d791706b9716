"""The best way to count a text's tokens that is on this disk already: never over the network."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .estimate import estimate

ENCODING = "o200k_base"
# Where tiktoken downloads the vocabulary from: the name of its cache file is a hash of this.
_URL = f"https://openaipublic.blob.core.windows.net/encodings/{ENCODING}.tiktoken"
_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

# A text without any space is one piece to a tokenizer, and some need quadratic time for a piece;
# bpe_openai refuses texts of more than 200,000 tokens.
_CHUNK = 8_000


@dataclass(frozen=True)
class Counter:
    """A way to count."""

    name: str
    "`bpe-openai` or `tiktoken`, which are exact for o200k_base, or `estimate`."
    count: Callable[[str], int]


@cache
def counter() -> Counter:
    """The best counter on this disk; it is looked for once in a process."""
    return find_counter()


def find_counter() -> Counter:
    """An installed offline encoding, else tiktoken if its vocabulary is here, else an estimate."""
    encoding = _offline_encoding()
    if encoding is not None:
        return Counter("bpe-openai", _counting(encoding.encode_ordinary))
    encoding = _tiktoken_encoding()
    if encoding is not None:
        return Counter("tiktoken", _counting(encoding.encode_ordinary))
    return Counter("estimate", estimate)


def chunks(text: str) -> Iterator[str]:
    """A text in pieces of bounded length, parted between lines or words where there are any."""
    start = 0
    while len(text) - start > _CHUNK:
        end = start + _CHUNK
        line = text.rfind("\n", start + 1, end) + 1
        # A space belongs to the word behind it.
        cut = line or text.rfind(" ", start + 1, end)
        end = cut if cut > start else end
        yield text[start:end]
        start = end
    yield text[start:]


def _counting(encode: Callable[[str], Sequence[int]]) -> Callable[[str], int]:
    return lambda text: sum(len(encode(chunk)) for chunk in chunks(text))


def _offline_encoding() -> Any:
    try:
        import bpe_openai
    except ImportError:
        return None
    return bpe_openai.get_encoding(ENCODING)


def _tiktoken_encoding() -> Any:
    # tiktoken downloads what is missing, without a time-out, and replaces a file that is damaged:
    # it is not asked before the file is known to be here and whole.
    if not _has_vocabulary():
        return None
    try:
        import tiktoken
    except ImportError:
        return None
    return tiktoken.get_encoding(ENCODING)


def _has_vocabulary() -> bool:
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    directory = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    if not directory:
        return False  # to tiktoken an empty name means: no cache, download each time
    try:
        data = Path(directory, hashlib.sha1(_URL.encode()).hexdigest()).read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data).hexdigest() == _SHA256
