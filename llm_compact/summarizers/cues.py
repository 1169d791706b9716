"""Sentences, and the words by which one shows what it is: a rule, a decision, mere talk."""

from __future__ import annotations

import re

from ..estimate import estimate

_CODE_BLOCK = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"\s*>")
_SPEAKER = re.compile(r"^(?:(?:user|assistant|system|tool|human)\s*[:：]\s*)+", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)|\n+|(?<=[。！？；])")
_BULLET = re.compile(r"^\s*(?:[-*•>]|\d+[.)])\s+|\*\*")

# A rule is worded as an order for all that follows.
_RULE = re.compile(
    r"(?:^|[:;,] ?(?:and |but )?|\d[.)] |\b(?:please|should|must|to) )"
    r"(?:never|always|don't ever|under no circumstances) (?!(?:been|had|seen|heard|a|the|in|at)\b"
    r"|\w+(?:ing|ed)\b)\w"
    r"|(?:^|[:;] ?|\d[.)] )(?:(?:please|and|also|but|so|remember|note|important)[,:]? )*"
    r"(?:don't|do not|make sure|only (?:ever |use )|use only|avoid|stick to"
    r"|(?:answer|reply|respond|write|speak)\b.{0,20} in)\b"
    r"|^no [\w ]{2,30},? please\b|^use [^.]{2,40}(?:, not|\binstead of|\brather than)\b"
    r"|\bplease (?:don't|do not)\b|\byou (?:should|must) (?:never|always|not)\b"
    r"|\b(?:from now on|may never|must not|under no circumstances|no matter what)\b"
    r"|^(?:niemals|nie |immer |bitte (?:nie|immer|kein))|\b(?:ab jetzt|auf keinen fall)\b"
    r"|^(?:ne .{2,20} jamais|toujours )|\b(?:désormais|dorénavant)\b"
    r"|^(?:siempre|nunca) |\ba partir de ahora\b|\bd'ora in poi\b|\bbundan sonra\b|^asla "
    r"|^(?:никогда не|всегда) |\bотныне\b"
    r"|(?:^|[，。：；])(?:请)?不要(?!担心|紧|客气|急|怕|难过)|必须|务必|以后都|以后请|一律|始终"
    r"|(?:必ず|常に|絶対に?).{1,30}(?:ください|下さい|こと|して|使う|しない)|しないで(?:ください|$)"
    r"|今後は|(?:항상|절대|반드시).{1,30}(?:세요|십시오|줘|마|해)|하지 ?마",
    re.IGNORECASE,
)
# "I have never been to Rome" lays down nothing; "I want you to never go there" does.
_NARRATIVE = re.compile(
    r"(?:and |but |so |\w+: )?(?:i|we|he|she|they|it|my|our|that|this)\b(?!.{0,20}\byou to\b)",
    re.IGNORECASE,
)
_OUTCOME = re.compile(
    r"\b(?:decid\w+|chose|agreed|instead of|because|rejected|settled on"
    r"|let's (?:use|go with|keep)|we(?:'ll| will) (?:use|go|keep)|fixed|root cause|turns? out"
    r"|resolved|works? now|pass(?:es|ed)|fail(?:s|ed)|done|completed?|created|updated|removed"
    r"|added|renamed|merged|released|deployed|confirmed|booked|cancel+ed|measured|result|total"
    r"|the (?:answer|problem|reason|cause) (?:is|was)"
    r"|entschieden|weil|behoben|erledigt|karar|çünkü|tamamlandı|décidé|parce que|decidido"
    r"|porque|deciso|perché|решили|потому что|исправлен\w*)\b"
    r"|决定|因为|所以|改为|采用|完成|修复|解决|原因|结果|成功|失败|決め|決定|完了|修正|ため"
    r"|결정|완료|수정|때문|해결",
    re.IGNORECASE,
)
# What an assistant says before it does something, and what people say to be polite.
_TALK = re.compile(
    r"(?:\w+[,.!]? )?(?:let me|i'll|i will|i'm going to|i need to|let's (?:see|check|look))\b"
    r"|now (?:i|let|fix|update|revert|remove|add|run|check|verify|the)\b"
    r"|(?:sure|certainly|great|okay|ok|thanks?|thank you|you're welcome|sorry|i'm sorry)\b"
    r"|i apologi|would you like|is there anything|好的|当然|谢谢|もちろん|ありがとう|감사",
    re.IGNORECASE,
)


def sentences(text: str, least: int = 5) -> list[str]:
    """The sentences of a text that were said: no code, quotes, tables, or fragments of a word.

    `least` is the tokens below which a piece says nothing.
    """
    prose = _CODE_BLOCK.sub("\n", text)
    found = []
    for piece in _SENTENCE_END.split(prose):
        if _QUOTED.match(piece):
            continue
        # Nobody can make a sentence look as if somebody else had said it.
        sentence = _SPEAKER.sub("", " ".join(_BULLET.sub("", piece).split()))
        if estimate(sentence) >= least and not sentence.startswith(
            ("|", "#", "<", "{", "[", "import ")
        ):
            found.append(sentence)
    return found


def is_rule(sentence: str) -> bool:
    """Whether a sentence of the user's lays something down for all that follows."""
    is_order = bool(_RULE.search(sentence)) and not _NARRATIVE.match(sentence)
    return is_order and not is_question(sentence)


def outcomes(sentence: str) -> int:
    """How many words in a sentence tell of a decision, a reason or a result."""
    return len(_OUTCOME.findall(sentence))


def is_talk(sentence: str) -> bool:
    """Whether a sentence only announces or pleases."""
    return bool(_TALK.match(sentence))


def is_question(sentence: str) -> bool:
    return sentence.endswith(("?", "？", "吗", "か", "か。", "吗。"))
