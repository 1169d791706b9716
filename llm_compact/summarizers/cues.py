"""The words by which a sentence shows what it is: a rule, a decision or result, mere talk."""

from __future__ import annotations

import re

# A rule is worded as an order for all that follows. "I have never been to Rome" is none.
_RULE = re.compile(
    r"(?:^|[:;] ?|\d[.)] )(?:(?:please|and|also|but|so|remember|note|important)[,:]? )*"
    r"(?:never|always|don't|do not|make sure|only ever"
    r"|(?:answer|reply|respond|write|speak)\b.{0,12} in"
    r"|niemals|nie|immer|bitte (?:nie|immer|kein\w*)|toujours|ne jamais|siempre|nunca|sempre|non"
    r"|asla|her zaman|mutlaka|никогда|всегда)\b"
    r"|\b(?:from now on|you must|must (?:not|never|always)|may never|under no circumstances"
    r"|no matter what|ab jetzt|auf keinen fall|désormais|a partir de ahora|d'ora in poi"
    r"|bundan sonra)\b"
    r"|不要|必须|始终|永远|禁止|务必|以后都|一律|必ず|常に|しないで|今後は"
    r"|항상|절대|반드시|하지 ?마",
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


def is_rule(sentence: str) -> bool:
    """Whether a sentence of the user's lays something down for all that follows."""
    return bool(_RULE.search(sentence)) and not is_question(sentence)


def outcomes(sentence: str) -> int:
    """How many words in a sentence tell of a decision, a reason or a result."""
    return len(_OUTCOME.findall(sentence))


def is_talk(sentence: str) -> bool:
    """Whether a sentence only announces or pleases."""
    return bool(_TALK.match(sentence))


def is_question(sentence: str) -> bool:
    return sentence.endswith(("?", "？", "吗", "か", "か。", "吗。"))
