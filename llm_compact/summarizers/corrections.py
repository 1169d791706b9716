"""What was said and later corrected: "use X instead of Y", "no, make it 20:00"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from llm.parts import Message

from ..conversation import text_of
from ..facts import exact_values
from ..values import place_of
from .cues import is_question, sentences

MOST = 200
"The latest corrections of a conversation that are looked for in what was said before."
LONGEST = 4_000
"Characters of a message that are read: what somebody pastes corrects nothing."
NEARBY = 4
"Messages of the same speaker before a correction that does not tell what it corrects."
MOST_RESPELLED = 20
"Values of a message: one that has more of them lists them."
LIKE = 0.85
"How much of a word has to be the same, if a correction is one of its spelling."


@dataclass(frozen=True)
class _Heard:
    """What the user said in a message."""

    index: int
    text: str

    @cached_property
    def values(self) -> list[tuple[str, str]]:
        return exact_values(self.text)

    def of_kind(self, kind: str) -> set[str]:
        return {value for value, of in self.values if of == kind}


@dataclass(frozen=True)
class Correction:
    """A value that no longer holds."""

    index: int
    "Of the message that corrects."
    old: str
    new: str
    since: int
    "Of the first message in which it can be meant: a common word is meant in the latest only."


# One word, or what is quoted.
_WORD = r"(?:[`\"“«][^`\"”»\n]{1,40}[`\"”»]|[\w./:@#%$€£+-]*[\w%€$/])"
_ARTICLE = r"(?:the |an? |my |our )?"
# Scripts without spaces: no kana that are endings, no punctuation.
_RUN = r"[`“「『]?[\u30a0-\u30ff\u3400-\u9fffA-Za-z0-9_./:@#%+-]{1,24}[`”」』]?"
_SHORTEST_RUN = _RUN.replace("{1,24}", "{1,12}?")
_HANGUL = r"[`“]?[\w./:@#%+-]{1,24}?[`”]?"


def _told(template: str, *words: str, run: str = _WORD, new_run: str | None = None) -> _Wording:
    old, new = f"(?P<old>{run})", f"(?P<new>{new_run or run})"
    pattern = template.replace("OLD", old).replace("NEW", new)
    return _Wording(words, re.compile(pattern, re.IGNORECASE))


@dataclass(frozen=True)
class _Wording:
    """A way to say that something takes the place of something else."""

    words: tuple[str, ...]
    "A sentence without any of these needs no closer look, and most have none."
    pattern: re.Pattern[str]


# "Not x but y" and the like say anything: only what stands out, such as a name, is corrected.
_CONTRASTS = (
    _told(rf"(?<!\w)NEW, (?:and )?not {_ARTICLE}OLD(?=[\s.,;:!)]|$)", ", not ", ", and not "),
    _told(
        rf"\b(?:replace|swap|change|rename|switch) (?:from )?{_ARTICLE}OLD (?:with|by|to|for) NEW",
        *("replace", "swap", "change", "rename", "switch"),
    ),
    _told(
        rf"\b(?:not|nicht|pas|no|non|не) OLD,? (?:but|sondern|mais|sino|ma|а) {_ARTICLE}NEW",
        *(" but ", " sondern ", " mais ", " sino ", " ma ", " а "),
    ),
    _told(
        rf"\bnot {_ARTICLE}OLD[,;:—–-]+ ?(?:it's|it is|use|i meant|make it) {_ARTICLE}NEW", "not "
    ),
    _told(r"(?<!\w)OLD değil,? NEW", "değil"),
)
_REPLACEMENTS = (
    _told(
        rf"(?<!\w)NEW,? (?:instead of|rather than|in place of|statt|anstatt) {_ARTICLE}OLD",
        *("instead of", "rather than", "in place of", "statt "),
    ),
    _told(
        r"(?<!\w)NEW (?:au lieu d[eu]|plutôt que|en (?:vez|lugar) de|em vez d[eao]|invece d[ie]l?"
        r"|al posto d[ie]l?|вместо) OLD",
        *(
            " lieu d",
            "plutôt que",
            "en vez",
            "en lugar",
            "em vez",
            "invece d",
            "al posto",
            "вместо",
        ),
    ),
    _told(r"(?<!\w)OLD yerine NEW", "yerine"),
    _told(
        r"(?:不是|不要用?|别用|不用)OLD[，,、]?(?:而是|而用|是|要用?|改成|改用|用|换成)NEW",
        *("不是", "不要", "别用", "不用"),
        run=_SHORTEST_RUN,
        new_run=_RUN,
    ),
    _told(
        r"(?:把|将|从)(?!\S{0,12}从)OLD(?:改成|改为|换成|改到|换到)NEW",
        *("改", "换"),
        run=_SHORTEST_RUN,
        new_run=_RUN,
    ),
    _told(
        r"用NEW(?:而不是|代替|不要用)OLD",
        *("而不是", "代替", "不要用"),
        run=_SHORTEST_RUN,
        new_run=_RUN,
    ),
    _told(
        r"OLD(?:では?なくて?|じゃなくて?|の代わりに|をやめて)、?NEW",
        *("なく", "代わり", "やめて"),
        run=_RUN,
    ),
    _told(r"OLD(?:を|から)NEWに(?:変更|変え|修正)", "変更", "変え", "修正", run=_RUN),
    _told(
        r"OLD(?:이|가)? ?(?:아니라|아니고|말고|대신에?),? NEW(?=으로|로|을|를|이|가|\W|$)",
        *("아니", "말고", "대신"),
        run=_HANGUL,
    ),
    _told(
        r"OLD(?:을|를|에서) NEW(?:으로|로) (?:바꿔|바꾸|변경|교체|수정)",
        *("바꿔", "바꾸", "변경", "교체", "수정"),
        run=_HANGUL,
    ),
)
_WORDINGS = (*_REPLACEMENTS, *_CONTRASTS)
_CUES = frozenset(word for wording in _WORDINGS for word in wording.words)
# What a sentence begins with that takes something back.
_TAKEN_BACK = re.compile(
    r"(?:^|[.!?。！？])[^\S\n]*"
    r"(?:(?:no|nope|wait|sorry|oops|actually|correction|scratch that|on second thoughts?"
    r"|i changed my mind|i (?:mis\w+|was wrong|meant)|one correction|nein|doch lieber|eigentlich"
    r"|halt|korrektur|non|en fait|finalement|pardon|mejor|en realidad|perdón|não|na verdade|anzi"
    r"|in realtà|нет|точнее|на самом деле|hayır|aslında|düzeltme|yok)\b"
    r"|不对|不，|等等|其实|更正|我说错|说错了|还是改|いや|やっぱり|訂正|間違え|すみません、|아니|사실|정정|잠깐)",
    re.IGNORECASE | re.MULTILINE,
)
_RESPELLED = re.compile(
    r"\b(?:corrections?|misspel\w+|spel(?:led|t)|typo|must be|should (?:be|have been)|doğrusu"
    r"|schreibt (?:man|sich)|s'écrit|se escribe)\b|更正|应为|应该是|正しくは|訂正|오타|정정",
    re.IGNORECASE,
)
_SAID_BY_ITSELF = re.compile(
    r"[\d/._@#$€£%-]|[A-Z].*[A-Z]|^[A-ZÀ-Þ]|[\u30a0-\u30ff\u3400-\u9fff]{2}"
)
_NOTHING = frozenset(
    ("i", "you", "he", "she", "we", "it", "its", "they", "them", "this", "that", "these", "those")
) | frozenset(("a", "the", "one", "ones", "all", "what", "which", "no", "nope", "yes"))
_ASCII_WORD = re.compile(r"\w+", re.ASCII)
_ENDING = re.compile(r"[A-Za-z0-9_][\w./:@%+-]*$", re.ASCII)
_QUOTES = '`"“”«»「」『』'
_KINDS = frozenset(
    ("path", "url", "email", "version", "date", "time", "amount", "bare", "ticket", "code", "flag")
)


class Corrections:
    """What a conversation corrects, the latest of it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._by_word: dict[str, list[Correction]] = {}
        self._by_index: dict[int, list[Correction]] = {}
        for correction in _corrections(messages)[-MOST:]:
            # There may be tens of thousands of sentences: each looks only at what it may have.
            word = _ASCII_WORD.search(correction.old)
            self._by_word.setdefault(word[0] if word else "", []).append(correction)
            self._by_index.setdefault(correction.index, []).append(correction)

    def told(self, text: str, index: int) -> str:
        """What a message says, and behind each value that was corrected since the new one."""
        words = {"", *_ASCII_WORD.findall(text)} & self._by_word.keys()
        for correction in (each for word in sorted(words) for each in self._by_word[word]):
            if not correction.since <= index < correction.index:
                continue
            place = place_of(correction.old, text)
            told = f"{correction.old} [→ {correction.new}]"
            if place >= 0 and told not in text:
                text = text[:place] + told + text[place + len(correction.old) :]
        return text

    def is_one(self, text: str, index: int) -> bool:
        """Whether what a message says corrects something."""
        return any(each.new in text for each in self._by_index.get(index, ()))


def _corrections(messages: Sequence[Message]) -> list[Correction]:
    found: list[Correction] = []
    heard: list[_Heard] = []
    for index, message in enumerate(messages):
        if message.role not in ("user", "assistant"):
            continue
        text = text_of(message)[:LONGEST]
        if message.role == "user":
            found += _by_user(index, text, heard[-NEARBY:])
            heard.append(_Heard(index, text))
        elif _RESPELLED.search(text):
            found += _respelled(index, text, heard[-NEARBY:])
    return found


def _by_user(index: int, text: str, heard: Sequence[_Heard]) -> Iterator[Correction]:
    if not (_TAKEN_BACK.search(text) or _has_any(_CUES, text.lower())):
        return
    for sentence in sentences(text, least=1):
        if is_question(sentence):
            continue
        told = list(_explicit(index, sentence, heard))
        yield from told
        if not told and _TAKEN_BACK.match(sentence):
            yield from _meant(index, sentence, heard)
            yield from _respelled(index, sentence, heard, anywhere=True)


def _has_any(words: Iterable[str], text: str) -> bool:
    return any(word in text for word in words)


def _explicit(index: int, sentence: str, heard: Sequence[_Heard]) -> Iterator[Correction]:
    lower = sentence.lower()
    for wording in _WORDINGS:
        if not _has_any(wording.words, lower):
            continue
        for match in wording.pattern.finditer(sentence):
            old, new = match["old"].strip(_QUOTES), match["new"].strip(_QUOTES).rstrip("吧了呢。")
            # "端口8080" is 8080, if what takes its place is no more than a number or a name.
            ending = _ENDING.search(old) if new.isascii() and not old.isascii() else None
            old = ending[0] if ending else old
            stands_out = _SAID_BY_ITSELF.search(old) or match["old"][0] in _QUOTES
            is_word = len(old) > 2 and not old.isdigit() and wording in _REPLACEMENTS
            is_said = old and new and not {old.lower(), new.lower()} & _NOTHING
            if not (is_said and (stands_out or is_word)):
                continue
            is_rare = stands_out and len(old) > 2
            since = 0 if is_rare else heard[0].index if heard else index
            yield Correction(index, old, new, since)


def _meant(index: int, sentence: str, heard: Sequence[_Heard]) -> Iterator[Correction]:
    """A value that takes the place of the only one of its kind that was said shortly before."""
    for new, kind in exact_values(sentence):
        if kind not in _KINDS:
            continue
        for said in reversed(heard):
            before = said.of_kind(kind)
            if before:
                if len(before) == 1 and new not in before:
                    yield Correction(index, before.pop(), new, said.index)
                break


def _respelled(
    index: int, text: str, heard: Sequence[_Heard], anywhere: bool = False
) -> Iterator[Correction]:
    """A value that is another one but for a letter or two."""
    told = (s for s in sentences(text, least=1) if anywhere or _RESPELLED.search(s))
    values = dict.fromkeys(new for sentence in told for new, _ in exact_values(sentence))
    if len(values) > MOST_RESPELLED:
        return
    for new in values:
        for said in heard:
            for old, _ in said.values:
                if _is_respelling(old, new):
                    yield Correction(index, old, new, said.index)


def _is_respelling(old: str, new: str) -> bool:
    if len(new) < 6 or abs(len(old) - len(new)) > 2 or old.lower() == new.lower():
        return False
    # Another number is another thing.
    if re.sub(r"\D", "", old) != re.sub(r"\D", "", new):
        return False
    return SequenceMatcher(None, old, new).ratio() >= LIKE
