"""Sentences, and the words by which one shows what it is: a rule, a decision, mere talk."""

from __future__ import annotations

import re

from ..estimate import estimate
from ..transcript import FRAGMENT_NOTE
from .habits import is_for_once, is_habit

LONGEST_SENTENCE = 2_000
"Characters that tell what it is. A longer one is a line of a program or of data."

_CODE_BLOCK = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"\s*>")
_SPEAKER = re.compile(r"^(?:(?:user|assistant|system|tool|human)\s*[:：]\s*)+", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"(?<=[.!?])\s+(?=\S)|(?<=[。！？；])(?![。！？；」』”’）)])|(?<=[。！？][」』”’）)])"
)
_BULLET = re.compile(
    r"^\s*\[[^\]\n]{0,40}\d{4}[^\]\n]{0,40}\]|^\s*(?:(?:[-*+•>]|\d+[.)])\s+)+|\*\*|^__(?=\w)"
)
# A line that was broken because it was long goes on in lower case.
_BROKEN = re.compile(r"(?<=[^\n]{48}[a-z,])\n(?=[a-z])")

# What clients write into a user's message, and what stands for a fragment, are notes to the model
# and nobody's words.
_ELEMENT = re.compile(
    r"<(system-reminder|task-notification|local-command-\w+|command-(?:message|contents)"
    r"|bash-std(?:out|err)|environment_context|user_instructions|ide_\w+|environment_details)\b"
    r"[^<>]*>"
)
_NOTE = re.compile(
    r"</?(?:command-(?:name|args)|bash-input|user_query|user-prompt)>"
    r"|\[(?:Request interrupted by user[^\]\n]*|[Ii]mage(?: #?\d+)?|Image: source:[^\]\n]*)\]"
    rf"|\([\d,]+ {FRAGMENT_NOTE}: .{{0,80}}?…\)|\ABase directory for this skill: .*\Z",
    re.DOTALL,
)
_MAY_HAVE_NOTE = re.compile(rf"[<\[]|{FRAGMENT_NOTE}|\ABase directory")
_SCREEN = re.compile("[⎿❯▐●╭╰✻]")

# Lines of a log, a table, a drawing, a terminal or a program: somebody pasted them.
_PASTED = re.compile(
    r"[●›$>]|\W*(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d\b|… \+\d"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d|(?:diff --git|@@ |\+\+\+ |--- )"
    r"|[\w.\[\]]+ \+?= \S|\W*\w[\w.]*\(.*\)\W*$|[\w.]+\(.*\) *(?:#|//)"
    r"|(?:def|class|function|async|const|let|var|func|public|private|static) \w+ ?[=({:<]"
    r"|(?:return|raise|throw|print|await|elif|if|for|while|with)\b.*[([{].*[)\]}:\"]$|yield \w"
    r"|(?:from \w[\w.]* )?import \w"
    # The rest of a line that was cut in a parenthesis.
    r"|[^(（]{0,200}\w\w[)）]"
)
_DRAWN = re.compile(r"[\u2500-\u259f⎿❯]")
_SETTINGS = re.compile(r"(?:\b[\w.]+=\S+ +){2}[\w.]+=")
_CODE_ENDS = (";", "{", "}", "):", "\\")
_CODE_SPAN = re.compile(r"`[^`]*`")
# Each character of a script without spaces says about as much as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\d_]{2,}")

# A rule is worded as an order for all that follows. Where a word alone does not tell ("always" may
# be a complaint), the order has to: an imperative, or a polite ending.
_RULES = {
    "en": r"(?:^|[:;,] ?(?:and |but )?|\d[.)] |\b(?:please|should|must|to) )"
    r"(?:never|never,? ever|always|don't ever|under no circumstances) (?!(?:ever|been|had|seen"
    r"|heard|a|the|in|at|mind|happy|glad|here|there|on|good|great|nice|fun|love[ds]?|know|knew"
    r"|wanted|thought|said|felt)\b|\w+(?:ing|ed)\b)\w"
    r"|(?:^|[:;] ?|\d[.)] )(?:(?:please|and|also|but|so|remember|note|important)[,:]? )*"
    r"(?:(?:don't|do not) (?!(?:know|think|want|need|have|see|understand|worry|bother|mind|care"
    r"|like|give up|get (?:discouraged|me wrong)|forget(?!.* (?:every|each|before|after|when)))\b)"
    r"|(?:make sure|only (?:ever |use )|use only(?! the (?:first|second|last)\b)|avoid|stick to"
    r"|(?:answer|reply|respond|speak|talk)\b.{0,20} in"
    r"|write (?:(?:it|everything|all|your|comments?|commit messages|docs?|tests?)\b.{0,20} )?in)\b)"
    r"|^(?:please )?(?:be (?:brief|concise|terse)\b|ask(?: me)?(?: first)? before (?:you|\w+ing)\b"
    r"|keep (?:your|all|the) (?:answers|replies|responses|explanations|commits|commit messages)\b"
    r"|call me (?-i:[A-Z])|only (?:edit|touch|change|modify) (?:files|code|what)\b)"
    r"|^(?:all|every|each|everything)\b(?: [\w-]+){0,4} (?:must|has to|have to) "
    r"(?:be in|be written|start|end|begin|contain|include|use)\b"
    r"|\byou(?: are|'re) not allowed to\b|\bwhatever happens, (?:don't|do not)\b"
    r"|\bimportant that you (?:never|always)\b"
    r"|^no [\w ]{2,30},? please\b|^use [^.]{2,40}(?:, not|\binstead of|\brather than)\b"
    r"|\bplease (?:don't|do not)\b|\byou (?:should|must) (?:never|always|not|only)\b"
    r"|\b(?:from now on|may never|must not|under no circumstances|no matter what)\b"
    r"|^(?:every time|each time|whenever) (?:you|i|we)\b.{3,60}, ?"
    r"(?!(?:i|we|you|it|he|she|they|the|my|there)\b)\w",
    "de": r"^(?:niemals|nie|immer) (?!(?:noch|wieder|mehr|im|mal|nur|zu|hätte|habe?|war|ist|dies\w*"
    r"|dasselbe|derselbe)\b)\w"
    r"|\bbitte (?:\w+ ){0,3}?(?:nie|niemals|immer|stets|keine?n?)\b"
    r"|\b(?:ab (?:jetzt|sofort|nun)|auf keinen fall|unter keinen umständen|künftig bitte)\b"
    r"|^(?:verwende|nutze|benutze|antworte|schreibe?|gib|fasse?|lösche?|ändere|mache?|halte|nimm"
    r"|lasse?|frage?|setze?|führe?|rühre?|teste|prüfe|nenne|zeige?|sprich|bleibe?|achte|denke?)\b"
    r".{0,40} (?:nie|niemals|immer|stets|keinesfalls)\b"
    r"|\bdu (?:darfst|sollst|musst) .{0,40}\b(?:nicht|nie|niemals|immer|stets|keine?n?|nur)\b"
    r"|^(?:bitte )?(?:antworte|schreibe?|sprich)\b.{0,20} auf (?:deutsch|englisch|französisch)\b"
    r"|^(?:bitte )?fasse? dich kurz\b|^keine \w+,? bitte\b"
    r"|\bdu darfst (?:nichts|niemanden)\b"
    r"|\b(?:darf|dürfen) (?:nie|niemals|nichts|niemand|keine?n?)\b",
    "fr": r"^(?:ne |n['’]).{2,30}? jamais |\ben aucun cas\b|\bil (?:ne )?faut (?:jamais|toujours) "
    r"|^ne (?!(?:sont|suis|sais|marche|fonctionne|trouve|comprends)\b)\w+ (?:rien|pas) "
    r"|^toujours (?!(?:la|les?|une?|pas|en|plus|est|aussi)\b)\w"
    r"|\b(?:désormais|dorénavant|à partir de maintenant|dès maintenant)\b"
    r"|^(?:réponds|répondez|utilisez?|écris|écrivez|donnez?|gardez?|parlez?|mets|mettez|fais|faites"
    r"|pensez?|vérifiez?|lancez?|demandez?|indiquez?)\b.{0,30} toujours\b"
    r"|^(?:réponds|répondez|écris|écrivez|parlez?)\b.{0,20} en (?:français|anglais|allemand)\b"
    r"|^n['’](?:utilis|ajout|effac|install|envoi|écri|exécut)\w+ (?:pas|rien)\b"
    r"|^(?:sois|soyez) (?:brefs?|concis)\b"
    r"|\b(?:tu|vous) (?:ne )?(?:dois|devez) .{0,20}(?:jamais|toujours)\b",
    # Spanish and Portuguese share "nunca", Portuguese and Italian "sempre".
    "es": r"^(?:siempre|nunca) (?!(?:he|has?|hemos|han|había|me|te|se|es|fue|est\w+|hay|el|los|las"
    r"|lo h\w+|tive|fui|foi|vi|é)\b)\w"
    r"|\b(?:a partir de ahora|de ahora en adelante)\b|^no .{2,25} (?:nunca|jamás)\b"
    r"|^no (?:toques|borres|uses|cambies|modifiques|hagas|escribas|añadas|elimines|publiques)\b"
    r"|\b(?:bajo ningún concepto|bajo ninguna circunstancia|en ningún caso)\b"
    r"|^(?:responde|contesta|usa|utiliza|da|escribe|mantén|habla|pon|haz|recuerda|indica|ejecuta)\b"
    r".{0,30} siempre\b|^pregúntame (?:siempre )?antes de\b"
    r"|^(?:responde|contesta|escribe|habla)\b.{0,20} en (?:español|inglés|francés)\b"
    r"|\b(?:debes|tienes que) .{0,15}(?:siempre|nunca)\b",
    "pt": r"^(?:responda|responde|escreva|fale)\b.{0,20} em (?:português|inglês|espanhol)\b"
    r"|^sempre (?!(?:est\w+|esque\w+|gost\w+|tive|fui|foi|é|vi|me|os?|as?|que|há|ach\w+"
    r"|pens\w+|soube|lo|la|gli|le|il|un\w*)\b)\w"
    r"|\b(?:a partir de agora|de agora em diante|daqui em diante)\b"
    r"|\b(?:em hipótese alguma|em nenhum caso|de forma alguma)\b|^não .{2,25} (?:nunca|jamais)\b"
    r"|^não (?:mexa|toque|altere|apague|mude|use|faça|escreva|remova|exclua|publique)\b"
    r"|^(?:responda|responde|use|usa|utilize|escreva|dê|mantenha|fale|indique|rode|execute|coloque)\b"
    r".{0,30} sempre\b",
    "it": r"^mai \w+(?:are|ere|ire)\b"
    r"|^(?:rispondi|scrivi|parla)\b.{0,20} in (?:italiano|inglese|francese)\b"
    r"|\b(?:d['’]ora in (?:poi|avanti)|da (?:adesso|ora) in (?:poi|avanti))\b"
    r"|^non \w+(?:are|ere|ire)\b|^non .{2,25}(?:in nessun caso|per nessun motivo)\b"
    r"|^(?:rispondi|usa|utilizza|scrivi|dai|mantieni|parla|indica|esegui|metti|fai)\b"
    r".{0,30} sempre\b",
    "ru": r"^(?:пожалуйста, )?(?:отвечай|пиши|говори)(?:те)? (?:\S+ )?(?:по-\w+|на \w+ом языке)"
    r"|^не \w+(?:йте|ите|ьте|[йиь])\b"
    r"|^(?:никогда не|всегда) (?!(?:одн\w+|так\w*|есть|можно|\w+л[аои]?)\b)\w"
    r"|\b(?:отныне|впредь|с этого момента|ни в коем случае|ни при каких)\b"
    r"|^\w+(?:йте|ите|ьте|[йиь]) (?:\S+ ){0,3}?всегда\b",
    "tr": r"\bbundan (?:sonra|böyle)\b|\bsakın\b|\basla\b(?!.{0,60}(?:[dt][ıiuü]|[ıiuü]yor)m?\b)"
    r"|^(?:\w+ ){1,3}(?:kullanma|dokunma|silme|yazma|ekleme|değiştirme)(?:yın|yin)?[.!]?$"
    r"|\bhiçbir zaman .{0,40}m[ae](?:yın|yin)?[.!]?$"
    r"|\b(?:kısa|türkçe|ingilizce) (?:cevap|yanıt) (?:ver|yaz)(?:in)?[.!]?$"
    r"|\b(?:her zaman|daima|kesinlikle|mutlaka) .{0,50}"
    r"(?:\b(?:sor|ver|kullan|yaz|et|yap|cevapla|yanıtla|çalıştır|ekle|belirt)|m[ae]|[ıiuü]n)[.!]?$",
    "zh": r"(?:^|[，。：；])(?:请)?(?:你)?(?:永远|绝对|任何时候都|无论如何都)?"
    r"(?:不要(?!担心|紧|客气|急|怕|难过)|别(?!的|人|处|说|急|怕|担心|客气))|^(?!.{0,6}[我他她]).{0,40}必须(?!的)|务必|以后都(?!会)|以后请|从现在(?:起|开始)|一律|请始终|^始终"
    r"|绝对?不(?:能|要|可(?!能)|许)|(?:^|[，。：；])(?:请)?不(?:准|许|得(?![不了已]))"
    r"|(?:^|[，。：；])(?:请|记住，?)?(?:都|全部|只|一直)?用[中英日法德韩俄西][文语](?:来)?(?:回答|回复|写|交流)"
    r"|(?:^|[，。：；])回答(?:要|请)(?:尽量)?简[短洁]|前(?:都|一定|必须|请)?(?:要|先).{0,3}(?:先问|问我|经过我|跑测试)"
    r"|千万(?:别|不要)|(?:请|^)禁止|每次.{1,20}都(?:要|得|必须)",
    "ja": r"(?:必ず|(?<!非)常に|絶対に?|決して|毎回|いつも).{1,40}"
    r"(?:ください|下さい|お願いします|こと|しない|使う|て)[。！]?$|ない(?:で|でください|こと)[。！]?$"
    r"|^(?:回答|返答|返事|説明)は.{1,15}(?:ください|下さい|お願いします|して)[。！]?$"
    r"|(?:今後|これから|以後)(?:は|も|、).{1,40}(?:ください|下さい|お願いします|こと|て)[。！]?$",
    "ko": r"(?:항상|절대로?|반드시|언제나|무조건|매번|앞으로|이제부터|지금부터).{1,40}"
    r"(?:세요|십시오|줘|물어봐|답해|마|말 것|할 것|해라|하라)[.!]?$|지 ?마(?:세요|십시오|라)?[.!]?$"
    r"|^(?:짧게|간단히|간결하게|한국어로) (?:답|대답|답변|말)해 ?(?:줘|주세요)[.!]?$",
}
_OTHER_SCRIPTS = ("ru", "zh", "ja", "ko")
_RULE_IN_LATIN, _RULE_IN_OTHERS = (
    re.compile("|".join(_RULES[code] for code in codes), re.IGNORECASE)
    for codes in ([code for code in _RULES if code not in _OTHER_SCRIPTS], _OTHER_SCRIPTS)
)
# What says by itself that it holds for good.
_FIRM = re.compile(
    r"\b(?:from now on|never|always|every time|whenever|no matter|under no circumstances|ab jetzt"
    r"|ab sofort|immer|nie|niemals|stets|auf keinen fall|toujours|jamais|désormais|dorénavant"
    r"|à partir de maintenant|siempre|nunca|a partir de|en adelante|sempre|em diante|mai|in poi"
    r"|всегда|никогда|отныне|впредь|с этого момента|bundan|asla|sakın|her zaman)\b"
    r"|以后|一律|始终|绝对|千万|每次|从现在|今後|これから|必ず|常に|絶対|항상|절대|앞으로|지금부터|반드시",
    re.IGNORECASE,
)
# "I have never been to Rome" lays down nothing; "I want you to never go there" does.
_NARRATIVE = re.compile(
    r"(?:(?:and|but|so|ok|okay|hm+|well|yeah|yes|no|oh|ah)[,.]? |\w+: )*"
    r"(?:i|we|he|she|they|it|my|our|that|this)\b"
    r"(?!.{0,20}\b(?:you to|that you (?:never|always))\b)",
    re.IGNORECASE,
)
# "Never commit to main, ok?" asks for nothing.
_ASKED_AFTER = re.compile(r",? (?:ok(?:ay)?|right|please|alright|got it)\?$", re.IGNORECASE)
_OUTCOME = re.compile(
    r"\b(?:decid\w+|chose|agreed|instead of|because|rejected|settled on"
    r"|let's (?:use|go with|keep)|we(?:'ll| will) (?:use|go|keep)|fixed|root cause|turns? out"
    r"|resolved|works? now|pass(?:es|ed)|fail(?:s|ed)|done|completed?|created|updated|removed"
    r"|added|renamed|merged|released|deployed|committed|pushed|installed|implemented"
    r"|replaced|confirmed|booked|cancel+ed|measured|result|total"
    r"|the (?:answer|problem|reason|cause) (?:is|was)"
    r"|entschieden|weil|behoben|erledigt|karar|çünkü|tamamlandı|décidé|parce que|decidido"
    r"|porque|deciso|perché|решили|потому что|исправлен\w*)\b"
    r"|决定|因为|所以|改为|采用|完成|修复|解决|原因|结果|成功|失败|決め|決定|完了|修正|ため"
    r"|結果|変更|追加しま|결정|완료|수정|때문|해결|변경|추가했",
    re.IGNORECASE,
)
# What an assistant says before it does something, and what people say to be polite.
_TALK = re.compile(
    r"(?:\w+[,.!]? )?(?:let me|i'll|i will|i'm going to|i need to"
    r"|let's (?!use\b|go with|keep|not\b))\b"
    r"|(?:now|first|next|then|finally)[, ]+(?:i|i'll|let|we|let's)\b"
    r"|now (?:fix|update|revert|remove|add|run|check|verify|the)\b"
    r"|(?:sure|certainly|great|okay|ok|thanks?|thank you|you're welcome|sorry|i'm sorry)\b"
    r"|i apologi|would you like|is there anything|好的|嗯|当然|谢谢|不客气|没关系"
    r"|もちろん|ありがとう|どういたしまして|감사|천만에요|알겠습니다|tabii|elbette|teşekkür"
    r"|rica ederim|让我|我来|我将|接下来我|我先|.{0,60}(?:하겠습니다|할게요|해볼게요)[.!]?$"
    r"|.{0,60}(?:確認|調査|実行|修正|追加|更新|検討)(?:します|していきます|しましょう)。?$",
    re.IGNORECASE,
)
# A whole message that only agrees, so that what it agrees to is told by the answer.
_ASSENT = re.compile(
    r"(?:(?:yes|yep|yeah|y|ok|okay|sure|go|go on|go ahead|continue|do it|please do|thanks|thank you"
    r"|good|great|nice|perfect|cool|ja|genau|oui|sí|si|sim|evet|tamam|olur|devam(?: et)?|да|давай"
    r"|好|好的|嗯|是|是的|对|可以|行|继续|谢谢|はい|うん|ええ|お願いします|了解(?:です)?|続けて"
    r"|네|예|응|ㅇㅇ|ㅇㅋ|좋아요?|그래|계속|please)[\s,.!。，！、:)]*)+",
    re.IGNORECASE,
)
# "That works.", "It is done.": who reads it alone does not know what.
_VAGUE = re.compile(
    r"(?:[A-Z]\w+: )?(?:(?:and|but|so|well|oh|yeah|yes|no|ok(?:ay)?|ah|aha|wow|great|good),? )*"
    r"(?:that|this|it|these|those|they|he|she|done|fixed|works?|agreed|exactly|same|here)\b"
    r"(?:'\w+)?(?:[ ,]+[\w'’-]+){0,4}[.!… ]*$"
    r"|(?:これ|それ|あれ|そう|这|那|它|그|이)(?:は|が|を|で|も|样|些|个|것|건|게|렇)?.{0,8}[。.!！]?$"
    r"|.{0,4}(?:完了|完成|修正|修复|done|완료|수정)(?:です|しました|しています|了|했습니다|합니다)?[。.!！]?$",
    re.IGNORECASE,
)
_GREETING = re.compile(
    r"(?:(?:hi|hello|hey|good (?:morning|afternoon|evening)|hallo|guten (?:tag|morgen)|bonjour"
    r"|salut|hola|buen[oa]s \w+|olá|ciao|привет|здравствуйте|merhaba|selam|iyi (?:günler|akşamlar)"
    r"|你好|您好|早上好|晚上好|こんにちは|こんばんは|おはよう(?:ございます)?|はじめまして"
    r"|よろしく(?:お願いします)?|안녕(?:하세요)?|반갑습니다)\b\W*"
    r"(?:(?:[A-Za-zÀ-ɏ]+|\w{1,3})\W*)?){1,3}",
    re.IGNORECASE,
)


def sentences(text: str, least: int = 5) -> list[str]:
    """The sentences of a text that were said: no code, quotes, tables, or fragments of a word.

    `least` is the tokens below which a piece says nothing.
    """
    return [sentence for line in sentences_by_line(text, least) for sentence in line]


def sentences_by_line(text: str, least: int = 5) -> list[list[str]]:
    """The sentences of a text as `sentences` has them, those of a paragraph together."""
    prose = _CODE_BLOCK.sub("\n", without_notes(text))
    lines = (
        [_bare(piece) for piece in _SENTENCE_END.split(line) if not _QUOTED.match(piece)]
        for line in _BROKEN.sub(" ", prose).split("\n")
    )
    # What is long enough needs no estimate, which takes longer than all the rest.
    told = (
        [s for s in line if _is_said(s) and (len(s) > 12 * least or estimate(s) >= least)]
        for line in lines
    )
    return [line for line in told if line]


def without_notes(text: str) -> str:
    """What a user typed of their message, without what their client wrote into it."""
    text = text if text.isascii() else _without_screen(text)
    if not _MAY_HAVE_NOTE.search(text):
        return text
    return _NOTE.sub("\n", _without_elements(text))


def _without_elements(text: str) -> str:
    """A text without what stands between a tag of a client's and its end."""
    pieces, place = [], 0
    # One expression for both tags would look for each end that is missing again and again.
    unclosed = set()
    for tag in _ELEMENT.finditer(text):
        if tag.start() < place or tag[1] in unclosed:
            continue
        closing = f"</{tag[1]}>"
        end = text.find(closing, tag.end())
        if end < 0:
            unclosed.add(tag[1])
            continue
        pieces += [text[place : tag.start()], "\n"]
        place = end + len(closing)
    return "".join([*pieces, text[place:]])


def _without_screen(text: str) -> str:
    """A text without what was copied from a terminal: from the first of its signs to the last."""
    signs = [match.start() for match in _SCREEN.finditer(text)]
    if not signs or "\n" not in text[signs[0] : signs[-1]]:
        return text
    end = text.find("\n\n", signs[-1])
    return text[: signs[0]] + (text[end:] if end >= 0 else "")


def _bare(piece: str) -> str:
    # Nobody can make a sentence look as if somebody else had said it.
    return _SPEAKER.sub("", " ".join(_BULLET.sub("", piece).split()))


def _is_said(sentence: str) -> bool:
    return bool(sentence) and not sentence.startswith(("|", "#", "<", "{", "[", "import "))


def is_prose(sentence: str) -> bool:
    """Whether a sentence was written to be read: no line of a log, of a table or of a program."""
    if sentence.endswith(_CODE_ENDS):
        return False
    sentence = sentence[:LONGEST_SENTENCE]
    if sentence.count("|") > 1 or _PASTED.match(sentence):
        return False
    if ("=" in sentence and _SETTINGS.search(sentence)) or _DRAWN.search(sentence):
        return False
    told = len(_WORD.findall(_CODE_SPAN.sub("", sentence)))
    return told > ("`" not in sentence)


def is_rule(sentence: str) -> bool:
    """Whether a sentence of the user's lays something down for all that follows."""
    if is_question(_ASKED_AFTER.sub("", sentence)):
        return False
    return is_habit(sentence) or (
        _is_order(sentence)
        and not _NARRATIVE.match(sentence)
        and (is_firm(sentence) or not is_for_once(sentence))
    )


def _is_order(sentence: str) -> bool:
    return bool(
        _RULE_IN_LATIN.search(sentence)
        or (not sentence.isascii() and _RULE_IN_OTHERS.search(sentence))
    )


def is_firm(rule: str) -> bool:
    """Whether a rule says by itself that it holds for good."""
    return bool(_FIRM.search(rule))


def outcomes(sentence: str) -> int:
    """How many words in a sentence tell of a decision, a reason or a result."""
    return len(_OUTCOME.findall(sentence))


def is_talk(sentence: str) -> bool:
    """Whether a sentence only announces or pleases."""
    return bool(_TALK.match(sentence))


def is_question(sentence: str) -> bool:
    return sentence.endswith(("?", "？", "吗", "か", "か。", "吗。"))


def is_assent(text: str) -> bool:
    """Whether a message does no more than agree."""
    return len(text) < 60 and bool(_ASSENT.fullmatch(text))


def is_vague(sentence: str) -> bool:
    """Whether a sentence says nothing by itself: what it means stands before or behind it."""
    return sentence.endswith((":", "：", ",", "，", "、")) or bool(_VAGUE.match(sentence))


def is_greeting(text: str) -> bool:
    """Whether a message does no more than greet."""
    return len(text) < 60 and bool(_GREETING.fullmatch(text))
