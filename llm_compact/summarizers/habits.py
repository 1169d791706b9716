"""How people word what shall always be so without saying "always" or "never".

Each wording stands for the whole of a short sentence from its start: in the midst of a longer one
the same words tell of something ("it fails after each restart") or belong to one request.
"""

from __future__ import annotations

import re

LONGEST_HABIT = 240
"Characters. What is longer explains something, or is a line of a document."

_LANGUAGE = (
    r"(?:english|german|french|spanish|italian|portuguese|dutch|turkish|russian|polish|chinese"
    r"|japanese|korean|swedish|danish|arabic|hindi)"
)
# In what something is written or given.
_FORM = (
    rf"(?:(?:british |american |plain |simple )?{_LANGUAGE}|utc|gmt|[ap]m\b|local time"
    r"|(?:the )?(?:imperative|present tense|past tense|active voice|first person|third person)"
    r"|plain (?:text|language)|(?:github )?markdown|latex|json|yaml|html|(?:lower|upper"
    r"|title)[ -]?case"
    r"|\w+_case|camel ?case|kebab[- ]case|(?:iso|rfc)\b|yyyy|dd[./-]mm|24[- ]h|metric|si units"
    r"|(?:us )?dollars|euros?|pounds|celsius|kelvin|fahrenheit|kilomet\w+|met(?:er|re)s"
    r"|[\w-]+ style|bold|italics|full sentences|bullet points|prose|brackets|backticks)"
)
# What there are many of in a talk or a project, so that "each" of them is no single thing.
_WORK = (
    r"(?:functions?|methods?|class(?:es)?|modules?|endpoints?|variables?|variable names?"
    r"|(?:test|file|branch|function) names?|tests?|commits?|commit messages?|branch(?:es)?|prs?"
    r"|pull requests?|migrations?|features?|releases?|bug ?fix(?:es)?|code|docs?|documentation"
    r"|docstrings?|comments?|strings?|imports?|scripts?|components?|quer(?:y|ies)|identifiers?"
    r"|answers?|repl(?:y|ies)|responses?|messages?|explanations?|summar(?:y|ies)|sentences?"
    r"|paragraphs?|lines?|headings?|titles?|chapters?|sections?|claims?|sources?|quotes?"
    r"|times?|timestamps?|dates?|prices?|amounts?|units?|numbers?|distances?|temperatures?"
    r"|measurements?|weights?|names?)"
)
_EVENT = (
    r"(?:changes?|edits?|modifications?|commits?|push(?:es)?|merges?|releases?|deploy(?:ment|s)?"
    r"|prs?|pull requests?|refactor(?:ing)?s?|migrations?|features?|fix(?:es)?|bug ?fix(?:es)?"
    r"|updates?|sessions?|turns?|tasks?|phases?|milestones?|chapters?|answers?|repl(?:y|ies)"
    r"|responses?|messages?|explanations?|questions?|steps?|claims?|statements?|figures?"
    r"|deletions?|installs?|commands?)"
)
_DOES = (
    r"(?:commit|push|merg|deploy|delet|remov|chang|edit|modify|install|releas|publish|send|mak"
    r"|touch|refactor|renam|add|overwrit|run|writ|answer|reply|start coding|cod|implement|us"
    r"|creat|drop|execut|upload|shar|mov)(?:e|t?t?ing|n?n?ing|p?p?ing|ing)?"
)
_VERB = (
    r"(?:add|address|append|ask|answer|back up|begin|build|bump|check|cite|comment|commit|confirm"
    r"|correct"
    r"|create|describe|document|do|double-?check|end|explain|finish|fix|follow|format|get|give"
    r"|include|keep|leave|let|lint|list|make|mark|mention|name|note|number|offer|open|post|prefix"
    r"|propose|provide|put|quote|read|rebase|remind|reply|respond|restart|review|round|run|save|say"
    r"|show|sign|spell|squash|start|state|stop|suggest|summari[sz]e|take|tag|tell|test|think"
    r"|translate"
    r"|update|use"
    r"|verify|wait|warn|write|don't|do not|never|always|only|stick|stay|avoid)"
)
# Things of style that people do without.
_DISLIKED = (
    r"(?:emojis?|emoticons|comments|jargon|slang|buzzwords|markdown|bullet(?:s| points?)|tables"
    r"|headings|headers|abbreviations|acronyms|apolog\w+|pleasantries|small talk|filler\w*|fluff"
    r"|preambles?|explanations?|introductions?|intros?|disclaimers?|caveats|recaps?"
    r"|closing remarks|flattery"
    r"|semicolons|tabs|trailing \w+|globals|global (?:variables|state)|(?:new |extra )?dependencies"
    r"|(?:third|3rd)[- ]party \w+|external (?:dependencies|libraries|packages|services)"
    r"|frameworks|force[- ]push\w*|direct (?:commits|pushes)|(?:commits|pushes|pushing|merging) "
    r"(?:to|on|without|before)|mocks|print statements|inline \w+|(?:wildcard|star|relative) imports"
    r"|magic numbers|passive voice|exclamation (?:marks|points)|em[- ]?dashes|clich[eé]s|spoilers"
    r"|hacks|workarounds|shortcuts|placeholders|guess(?:es|ing|work)|swearing|swear words|sarcasm"
    r"|lectur\w+|moraliz\w+|long (?:answers|replies|explanations|sentences)|code blocks"
    r"|(?:follow-up|unnecessary|unneeded) \w+|orms?|yapping|(?:more|longer|fewer|less) than)"
)
_NO_REPORT = (
    r"(?!.{0,80}\b(?:is|are|was|were|has|have|had|did|does|do|works?|worked|fails?|failed|found"
    r"|left|remain\w*|so far|appear\w*|seem\w*|came|needed|shown)\b)"
)
_START = (
    r"^(?:(?:please|and|also|but|so|then|oh|ok(?:ay)?|btw|by the way|one more thing|remember|note"
    r"|important|rule|reminder)[,:]? ){0,3}"
)
_EACH = r"(?:each|every|any|all)(?: single)?(?: [\w-]+){0,2}"

_IN_ENGLISH = [
    # Habits: something is done whenever something else is.
    rf"{_VERB}\b.{{0,80}}\b(?:after|before|with|on|at the \w+ of|in|for) {_EACH}? ?\b{_EVENT}\b",
    rf"(?:before|after|on|with|upon|at the \w+ of|in|for|to) {_EACH} {_EVENT}\b.{{0,40}}?,? "
    rf"(?:please |i want |you )?{_VERB}\b",
    rf"(?:before|after) (?:you )?{_DOES}\b(?! (?:the|it|to)\b).{{0,40}}, (?:please )?{_VERB}\b",
    rf"{_VERB}\b.{{0,60}} before (?:you )?{_DOES}\b(?! (?:the|to)\b)",
    rf"{_VERB}\b.{{0,40}} (?:whenever|every ?time|each time|any ?time) (?:you|i|we|an?|something"
    rf"|anything)\b",
    rf"(?:any ?time|every ?time|each time|whenever) (?:you|i|we|a|an)\b.{{3,60}}, (?:please )?"
    rf"{_VERB}\b",
    rf"(?:when|if|as soon as|once) you (?!(?:are|have|finish|get|can|see|find|know|like|want|ever"
    rf"|need)\b|\w+ed\b)"
    rf"\w+ (?!(?:the|to|it|up|them)\b).{{1,50}}, (?:please |then )?(?!let me know){_VERB}\b",
    r"if you need .{2,50}, (?:please )?ask\b",
    r"(?:when|if|where|whenever) (?:you(?:'re| are) )?(?:ever )?(?:in doubt|unsure|uncertain"
    r"|unclear"
    r"|not (?:sure|certain))\b.{0,40}, \w",
    r"(?:when|if) you (?:don't|do not|can't|cannot) (?:know|find|answer|verify|understand)\b"
    r".{0,40}, (?:just |please )?(?:say|tell|ask|admit|stop|don't|do not)\b",
    r"(?:when|if|as soon as) (?:a|an|any|anything|something)\b.{3,50}, (?:please "
    r"|then )?(?:ask me|stop|tell me(?! (?:what|where|how|why|which)\b)|say so|let me know|warn"
    r"|wait|inform)\b",
    r"(?:when|if|whenever) i (?:say|write|type|ask|paste|mention|make|am)\b.{2,60}, (?:i mean\b"
    rf"|(?:please |just )?{_VERB}\b)",
    r"(?:ask|tell|warn|consult|notify|inform|show|check with|let|get|wait|await|seek)\b.{0,40} "
    rf"before (?:(?:you )?{_DOES}\b(?! the\b)|any)",
    # What holds from now on, or for this talk.
    r"(?:for (?:all|any|every) (?:future|further|other) |for the (?:rest|remainder) of (?:this|the"
    r"|our) (?:chat|conversation|session|project|talk)|(?:in|as a) general(?: rule)?, )\b.{3}",
    r"(?:going forward|from here on(?: out)?|from this point on|until further notice|by default)"
    rf",? (?:please |we |you |i want )?(?:{_VERB}|prefer|treat|call|assume)\b",
    rf"in (?:the )?future,? (?:please )?{_VERB}\b",
    rf"{_VERB}\b.{{3,80}} (?:going forward|until (?:i say|further notice|told)|unless i (?:say|ask"
    r"|tell)|in (?:the )?future)\b",
    r"(?:in|for|throughout) this (?:project|repo|repository|codebase|conversation|chat|session),? "
    rf"(?:please )?(?:{_VERB}|you(?:'re| are) (?:my|an?)\b|(?:we|you|i) (?:use|don't|do not|only"
    r"|always|never|prefer|follow|avoid|must|want)\b)",
    # Orders that no step of the work fulfils.
    r"(?:leave|let) (?!(?:me|him|her|us|it|that|this|them|the (?:rest|others?))\b).{2,60}"
    r" (?:alone|untouched|intact"
    r"|unchanged|in (?:peace|place)|as (?:it is|they are|is)|where (?:it is|they are))[.!]*$",
    r"keep (?:(?:your |the )?(?:hands|fingers) off|away from|out of)\b",
    r"hands off (?:the|of|my|our|any|everything|\w+[.!]*$)(?!.*, (?:he|she|they) said)",
    r"stay (?:away from|out of|off) (?:the|my|our|any|all|\w+[.!/]*$)",
    r"(?:stop|quit|cease) (?!(?:worry|kidd|be|cry|jok|laugh)ing)\w+ing\b(?! (?:the|it|here)\b)",
    rf"(?:skip|omit|drop|spare me|leave out|cut) (?:the |all |any |your )?{_DISLIKED}\b",
    r"refrain from\b",
    r"prefer (?!(?:which|what|not)\b)\w+",
    r"(?:limit|restrict|confine) yourself to\b",
    r"(?:commit|push|save) (?:often|early|regularly|frequently)\b",
    r"(?:answer|reply|respond|explain|speak)(?: me)? (?:as )?(?:plainly|simply|briefly"
    r"|concisely|formally|directly"
    r"|politely)\b",
    r"your (?:[\w-]+ )?(?:answers?|replies|responses|messages|explanations?|tone|code|commits"
    r"|style)"
    r" (?:should|must(?! (?:have|be (?:wrong|broken|right|old|fine|good))\b)|needs? to|ha(?:s"
    r"|ve) to)\b",
    r"(?:tests?|code|docs?|ask|plan|answers?|questions?|read|think|types?|design|specs?) first,"
    r" (?:then )?\w+(?: \w+)?[.!]*$",
    r"only (?:ever )?(?:touch|edit|modify|work (?:in|on)) (?!.{0,60}\b(?:lines?|paragraph"
    r"|sentence|word"
    r"|first|second|last)\b)\w",
    r"correct (?:me|my \w+)\b.{0,20} (?:when|if|whenever)\b",
    r"keep .{2,40} (?:up[- ]to[- ]date|in sync|private|secret|confidential|green|stable)\b",
    r"(?:ask|take|do|give me|make|send) (?:me )?(?:one|1|two|2) \w+(?: \w+)? at a time\b(?! when)",
    r"round (?:(?:all |every )?(?:numbers|amounts|prices|results|figures) )?(?:up |down )?to"
    r" (?:\d|one|two|three|full|whole|zero|the nearest (?:\w+ )?(?:cent|integer|ten|hundred|euro"
    r"|percent))\b",
    r"use .{2,40} (?:for|in) (?:all|every|each|any) (?!of\b)\w",
    rf"(?:{_FORM}|metric|imperial|british|american)(?: [\w-]+){{0,2}}(?: only|, please)[.!]*$",
    r"(?:[^.,;]{3,60},? )?(?:until i say|hold off (?:on|with))\b(?=.{0,40}$)",
    r"whatever (?:happens|you do),? (?:don't|do not|never|always|keep|please)\b",
    r"(?:it|everything|\w+|the [\w-]+) (?:must|ha(?:s|ve) to|should)"
    r" (?!have\b).{3,60} at all times\b",
    r"(?:i|we|this|the|my|our)\b[^,]{3,60}, so (?:please )?(?:answer|reply|respond|speak|write|use"
    r"|explain) (?!(?:the|this|that|another|it|me|to)\b)\w",
    r"use (?:at most|no more than|a maximum of)\b",
    _NO_REPORT
    + r"[^.,;]{3,80} per (?:answer|reply|response|message|commit|function|sentence|paragraph"
    r"|chapter)[.!]*$",
    r"only (?:commit|push|merge|deploy|answer|reply|use|delete|install|change|ask|edit|add"
    r"|write)\b"
    r".{0,50} (?:when|if|after|once|with my|on request)\b",
    r"assume (?:that )?(?:i(?:'m| am)|we(?:'re| are)|the (?:reader|user|audience)|python|node"
    r"|windows|linux|mac\w*"
    r"|ubuntu)\b",
    rf"(?:log|comment|think|document|report|name things) in {_LANGUAGE}\b",
    rf"{_VERB}\b.{{0,60}} (?:every|each|any|all) (?:new|future|further|bug ?fix)\b",
    r"(?:test|check|document|review|confirm|announce) every (?:single )?(?:change|commit|edit|fix"
    r"|bug ?fix|release|public|new)\b",
    r"refer to .{2,40} as (?!(?:needed|in|soon|long|you|it)\b)\w",
    r"(?:everything|anything|whatever) (?:you|we) \w+ (?:must|should|has to|needs to)\b",
    r"no (?!(?:errors?|changes?|failures?|problems?|differences?|outputs?|results?|ideas?|warnings?"
    r"|issues?|tests?|bugs?|mentions?|match(?:es)?|such|progress|news)\b)[\w -]{3,40} (?:in"
    r"|outside|on)"
    r" (?:the )?(?:tests?|code|answers?|replies|comments|docs|commits?|production|main"
    r"|master)[.!]*$",
    r"i(?:'m| am) (?:an? )?[\w -]{3,30}, so (?:please )?(?:avoid|keep|never|always|no \w+ (?:in"
    r"|for) (?:any|all))\b",
    r"be (?:more |very |always )?(?:brief|concise|terse|succinct|direct|blunt|formal|informal"
    r"|polite|critical)\b",
    r"(?:don't|do not) be (?:so |too |overly )",
    r"(?:treat|address) me (?:as|like|by|with|in\w*)\b",
    rf"(?:talk|speak|write|explain (?:things|everything|concepts)) to me (?:like|as|in)\b"
    rf"|speak (?:only )?{_LANGUAGE}\b"
    r"|explain (?:things|everything|concepts) (?:as|like|in|to)\b",
    r"keep (?:the (?:tone|style|language|wording|voice)|everything|(?:your|all|every)"
    r" (?=[\w-]*(?: [\w-]+)?\b(?:answers?|repl|respons|messages|explanations?|functions?|methods?"
    r"|classes|lines|tests|commits?|code|tone|language|hands))|functions|methods"
    r"|classes|lines|commits|answers|replies|responses|paragraphs|sentences|messages)\b.{1,60}",
    r"(?:keep|use|write|prefer|stay|be)\b.{2,60},? (?:always|at all times|throughout|everywhere"
    r"|in all cases)[.!]*$",
    # How something is written.
    rf"(?:give|show|write|format|state|express|put|spell|report|print|keep|name) (?:me )?"
    rf"(?!(?:the|an?|my|one|his|her)\b)(?:(?:all|every|each|any|your) )?(?:[\w-]+ )?{_WORK} "
    rf"(?:\w+ )?(?:in|as|with|after|like) "
    rf"{_FORM}",
    r"(?:name|call|prefix) (?:(?:all|every|each|any|your|new) )?(?:test |new )?(?:files|tests"
    r"|branches|variables|functions|commits|classes) (?!(?:that|which|in|with|for|from)\b).{3}",
    rf"(?:start|begin|end|finish|close|open|prefix|sign|format|keep) (?:each|every|all|your) "
    rf"(?:[\w-]+ )?{_WORK}\b.{{3}}",
    rf"(?:put|cite|mark|give|state)\b.{{2,40}} (?:after|before|behind|next to|for) (?:each|every) "
    rf"(?:[\w-]+ )?{_WORK}\b",
    r"(?:put|place) (?:new|every new|all new) \w+ (?:in|into|under|next to|beside)\b",
    rf"use (?:only )?(?:the )?(?:{_FORM}|(?:metric|imperial|si) (?:system|units)|(?:british"
    rf"|american"
    r"|uk|us|oxford) (?:english|spelling)|conventional commits|semantic versioning|(?:single"
    r"|double)"
    r" quotes|(?:two|four|2|4)[- ]spaces?|type hints|(?:in)?formal (?:language|tone)|active voice)"
    r"\b(?!.{0,60} (?:for|in|to) (?:the|a)\b)",
    rf"(?:all |any |your |every |each )?(?:[\w-]+ )?{_WORK} (?:only |always |please )?(?:in|as) "
    rf"(?:the )?{_FORM}\b{_NO_REPORT}",
    r"(?:(?:two|four|2|4)[- ]spaces?|tabs|spaces|(?:single|double) quotes|type hints|docstrings"
    r"|\w+_case|camelcase|trailing commas)\b,? .{0,30}?(?:for (?:indent\w+|strings|names|all"
    rf"|variables)|everywhere|throughout|only|please)\b{_NO_REPORT}",
    r"(?:one|two|three|1|2|3|max(?:imum|\.)?|at most|no more than)(?: \w+)? [\w-]+"
    rf"(?: [\w-]+)? (?:per (?!second|hour|day|week)\w+|at a time)\b{_NO_REPORT}",
    rf"no (?:more )?{_DISLIKED}(?![\w-]){_NO_REPORT}",
    rf"[^.,;]{{3,60}}, (?:and )?no {_DISLIKED}(?:, please)?[.!]*$",
    rf"(?:without|with no) {_DISLIKED}(?:,? please)?[.!]*$",
    _NO_REPORT
    + r"only (?:ever )?(?:the )?(?:standard|stdlib|built-?in|native|open[- ]source|official|public"
    r"|plain|ascii|metric|short|lower ?case|vanilla|pure|typed"
    r"|free)\b[\w -]{0,40}(?:, please)?[.!]*$",
    # What holds for all of a kind.
    rf"(?:all|every|each|any|no) (?:[\w-]+ ){{0,2}}{_WORK}(?: [\w-]+){{0,2}}"
    rf" (?:must(?! have \w+[ed]\b)"
    r"|ha(?:s|ve) to|(?:should|shall) (?!(?:pass|arrive|work|come|have)\b)|may (?:only|not|never)"
    r"|needs? (?:an?|to)|gets? (?:an?|its)"
    r"|requires? an?"
    r"|go(?:es)? (?:in|into|through|under)|belongs? (?:in|to|under)|stays?)\b",
    r"(?:the|our|your|my|all|any) (?:[\w-]+ ){1,3}must (?:stay|remain|not|keep|never|always)\b",
    rf"(?:[\w-]+ )?{_WORK} must (?:be|start|end|use|follow|contain|include|fit) (?!(?:wrong"
    rf"|broken|missing"
    r"|lost|there|here|the|from|some\w*|to blame)\b)\w",
    rf"{_WORK} (?:belong|go) (?:in|into|under)\b",
    r"(?!(?:i|we|it|he|she|they|you|this|that)\b)[\w-]+ (?:never|must|may never) go(?:es)? "
    r"(?:in|into|to|on)\b",
    r"(?:nobody|no one|no-one) (?:but|except|other than) (?:me|i|us)\b",
    r"(?:nobody|no one|nothing|no \w+) (?:gets?|is|are|goes|may|can|should|must|leaves)"
    r" (?!saved\b).{3,60} (?:without|unless|until) (?:my|i|me|a|asking|review)\b",
    r"(?!(?:access|request|operation|method|this|that|it|which|he|she|they)\b)[^.,]{3,60} (?:is"
    r"|are)"
    r" (?:banned|forbidden|off[- ]limits|taboo|prohibited|a no-go|read-only)(?: (?:for"
    r"|to) you)?[.!]*$",
    r"(?:in no case|on no account|at no point|at no time) (?!(?:did|was|were|ha[ds]|have|is|do|does"
    r"|could|would|can)\b)\w",
    # What "you" may, and what "I" and "we" hold.
    r"you(?:'re| are) (?:only (?:allowed|permitted) to|(?:not (?:allowed |permitted "
    r"|supposed )?)?to(?! blame))\b",
    r"you (?:(?:can|may) only|can't|cannot|can not|may not|mustn't|shouldn't) (?:use|touch|change"
    r"|access|push|edit"
    r"|modify|delete|install|run|write|commit|call|rename|remove|create|add)\b(?! (?:that|this"
    r"|it)\b)",
    r"you (?:have to|need to|should|are to) (?:ask (?:me|us|first|before)|keep|stick|follow"
    r"|respect|adhere|cite|stay"
    r" (?:under|below|within|in|on))\b",
    r"(?:remember|keep in mind|bear in mind) that (?:[\w'-]+ ){1,4}(?:am|is|are|must|cannot|can't"
    r"|don't|doesn't|has to|have to|needs?|uses?|prefers?|only|runs?)\b",
    r"note that .{3,60} (?:must|never|may only|should)\b",
    rf"remember to (?!stay\b){_VERB}\b",
    r"our (?:[\w-]+ ){0,2}(?:style|conventions?|standard|minimum|policy|limit|rule)\b.{0,30} "
    r"(?:is|are) (?-i:[A-Z\d]|to |that |at )",
    r"we (?:only|always|never) (?:use|support|write|commit|accept|target|merge|deploy|ship|test)"
    r" (?!(?:it|that|this)\b)",
    r"we (?:deploy|release|merge|commit|push|write|test|meet|ship|work) only (?:on|in|at|to|with"
    r"|from|after|when)\b",
    r"we (?:use|prefer|follow|stick to|avoid) (?!a lot\b).{2,50}(?:\bhere|in this (?:project"
    r"|repo\w*"
    r"|codebase)|throughout|, not [^,]*|\b(?:instead of|rather than) [^,]*)[.!]*$",
    r"we (?:don't|do not) (?:use|allow|accept|do|write|mock|commit|support) (?!(?:it|that|this|the"
    r"|any more|anymore|much|a lot)\b)[\w-]+(?: [\w-]+){0,2}(?: here)?[.!]*$",
    r"i (?:strongly |always |generally |usually |really |much )?prefer (?!(?:the|this|that|it|these"
    r"|those|your|option|version|an?|not|to wait|to go)\b)\w",
    r"i(?:'d| would) (?:rather|prefer|like)(?: it if| that)? you (?:didn't|don't|did not|not|never"
    r"|always)\b",
    r"i(?:'d| would) (?:like|prefer) (?:only )?(?:[\w-]+ )?(?:short|brief|concise|plain|detailed) "
    r"(?:answers|replies|responses|explanations)\b",
    r"i (?:don't|do not|never) want (?:you to (?!(?:feel|be|think|worry|go|get)\b)|any"
    r" (?:more |new |extra )?(?!more\b)\w+s\b)",
    rf"i (?:(?:don't|do not) (?:like|need|want)(?: any)?|hate|dislike|can't stand"
    rf"|want no) {_DISLIKED}(?![\w-])",
    r"i (?:always|only) want (?:to (?:see|know|have|be (?:asked|told))|you|the|short|answers)\b"
    r"|i want (?:you to always|all (?:your "
    r"|the"
    r" )?(?:answers|replies|responses|dates|times|prices|comments|commits)|every (?:answer|reply"
    r"|response|commit|function|change))\b",
]
_IN_OTHERS = [
    # German
    r"(?:bitte )?(?:führe?|mache?|schreibe?|teste?|prüfe?|zeige?|lass|starte?|aktualisiere?|gib"
    r"|frage?"
    r"|sage?|beende?|beginne?|nenne?|füge?|setze?|committe?)\b(?: .{2,60})? (?:nach|vor|bei|zu|mit"
    r"|in|am ende) jede[rmsn]\b",
    r"(?:vor|nach|bei|mit|am (?:ende|anfang)) jede[rmsn] (?:[\w-]*(?:commit|push|änderung|antwort"
    r"|schritt|merge|release|nachricht|kapitel|aufgabe|deployment|löschen))s?"
    r" (?!.{0,60}\b(?:stürzt|schlägt|kommt|gibt|wird|ist|war|fehlt)\b).{2,60}",
    r"(?:bitte )?(?:frage?|sage?|warte|zeige?|gib|warne?)\b.{0,40}, bevor du\b",
    r"bevor du\b.{3,50}, (?:bitte |immer )?(?:frag|führ|lass|prüf|zeig|sag|mach|test|lies|schreib)",
    r"(?:jedes mal|immer),? wenn du\b|sobald du eine?\b|wenn du (?:eine?|sql|code|dir|nicht"
    r"|unsicher)"
    r"\b.{2,50}, (?:frag|sag|schreib|verwend|nimm|nutz|benutz)",
    r"(?:jede[rs]?|alle|sämtliche) (?:[\w-]+ ){1,3}(?:braucht|brauchen|muss|müssen|bekommt|soll"
    r"(?:en)?|gehör(?:t|en)) (?:eine?n?|in|auf|nach|zu|mit|\w+ (?:sein|haben|werden|bleiben))\b"
    r"(?! (?:paar|sekunde|minute|weile))",
    r"(?:bitte )?(?:nur|ausschließlich|kein\w*|nichts)\b(?! dies).{2,60} (?:verwenden|benutzen"
    r"|nutzen|ändern"
    r"|anfassen|löschen|schreiben|pushen|committen|bearbeiten|installieren|einchecken)[.!]*$",
    r"(?:bitte )?lass(?:en sie)? (?!(?:uns|mich|das|es)\b).{2,50} (?:in ruhe|unverändert|so,? wie"
    r"|wie (?:er|sie|es) ist)",
    r"(?:finger|hände) weg von\b",
    r"(?:bitte )?(?:halte? dich kurz|(?:duze?|sieze?) mich|sei (?:knapp|direkt|kritisch"
    r"|förmlich)\b)",
    r"(?:alle |deine |bitte )?(?:[\w-]*(?:zeiten|kommentare|antworten|nachrichten|namen|preise"
    r"|daten"
    r"|texte|docstrings|angaben))(?: \w+)? (?:bitte |immer |nur |stets )*(?:auf|in|als) (?:deutsch"
    r"|englisch|französisch|utc|euro|snake_case|iso|metrisch)\w*[.!]*$",
    r"(?:kommentiere|dokumentiere|schreibe?|antworte)\b.{0,40} (?:auf|in) (?:deutsch|englisch"
    r"|französisch)[.!]*$",
    r"ich (?:bevorzuge|mag keine (?:emojis|listen|tabellen|anglizismen|abkürzungen|floskeln"
    r"|kommentare)|möchte (?:keine?|immer|nur)|will (?:keine?|immer|nur))\b",
    r"(?:bitte )?(?:nenne?|verwende|nutze|benutze|erfinde|lösche?|ändere|installiere|schreibe?)"
    r" (?:\w+ )?"
    r"(?:keine?n?|nichts)\b",
    # French
    r"(?:commente[zs]?|nomme[zs]?|termine[zs]?|commence[zs]?|teste[zs]?|lance[zs]?|exécute[zs]?"
    r"|écri[st]|écrivez|fais|faites|mets|mettez|montre[zs]?|ajoute[zs]?|donne[zs]?|vérifie[zs]?"
    r"|cite[zs]?|utilise[zs]?|mets à jour)\b.{0,50} (?:toujours\b|(?:après|avant|à la fin de"
    r"|à) chaque "
    r"(?:modif\w*|changement|commit|étape|réponse|push|fichier|version|message))",
    r"(?:après|avant|à la fin de|pour|à) chaque (?:modif\w*|changement|commit|étape|réponse|push"
    r"|message)\b.{0,30}, \w",
    r"(?:chaque fois|dès) que (?:tu|vous)\b.{3,60}, \w",
    r"(?:demande|demandez|préviens|prévenez|montre|dis|dites)[- ](?:le[- ])?moi\b.{0,30} avant d",
    r"(?:chaque|toute?s? les?|tout) (?:[\w-]+ ){1,3}(?:doi(?:t|vent)|devra(?:it)?) (?!avoir été)\w",
    r"(?:laisse[zs]?) .{2,50} (?:tranquille|intacte?s?|tel(?:le)?s? quel(?:le)?s?|comme (?:il"
    r"|elle))",
    r"(?:ne |n['’])touche[zs]? (?:pas|à rien|plus)\b",
    r"(?:pas d['’e]|sans |aucun )\W?(?:emojis?|émojis?|commentaires?|jargon|markdown|dépendances?"
    r"|listes?)\b[^.]{0,30}[.!]*$",
    r"(?:uniquement|seulement|rien que) (?:la |les? )?(?:bibliothèque|modules?|python|api|outils"
    r"|des"
    r" phrases|phrases)\b(?!.{0,60}\b(?:marche|fonctionne|échoue|est|sont))",
    r"(?:toutes? les |tous les |les )?(?:heures|dates|prix|réponses|commentaires|messages de commit"
    r"|noms) (?:toujours )?en (?:utc|français|anglais|euros|iso)\w*[.!]*$",
    r"(?:tutoie|vouvoie|appelle)[zs]?-moi\b(?!.{0,20} (?:demain|quand|plus tard))",
    r"je préfère (?!(?:la|le|les|cette|ce|ça)\b)\w",
    # Spanish
    r"(?:comenta|documenta|ejecuta|corre|haz|pon|muestra|actualiza|añade|termina|empieza|prueba"
    r"|cita"
    r"|revisa|escribe|nombra|usa)\b.{0,50} (?:siempre\b|(?:después de|antes de|tras|en"
    r"|al final de) "
    r"cada (?:cambio|commit|paso|respuesta|edición|modificación|push|mensaje|versión))",
    r"(?:antes de|después de|tras|al final de|en) cada (?:cambio|commit|paso|respuesta|edición"
    r"|modificación|push|mensaje)\b.{0,30}, \w",
    r"(?:cada vez|siempre) que (?!.{0,40}\b(?:falla|fallo|me|se)\b).{3,60}, \w",
    r"(?:pregúntame|avísame|dime|muéstrame|consúltame)\b.{0,30} antes de (?!irte)\w",
    r"(?:cada|tod[oa]s? l[oa]s?|todo|toda) (?:[\w-]+ ){1,3}(?:debe[n]?|necesita[n]? una?|tiene[n]?"
    r" que) \w",
    r"dej[ae] (?:en paz|intact\w+|tal cual|como está)\b|dej[ae] .{2,50} (?:en paz|intact\w+"
    r"|tal cual"
    r"|como está)",
    r"(?:sin|nada de|ningún) (?:emojis?|comentarios|jerga|markdown|dependencias"
    r"|listas)\b[^.]{0,30}[.!]*$",
    r"(?:solo|sólo|solamente|únicamente) (?:la |los |las )?(?:biblioteca|librería|módulos|python"
    r"|frases"
    r"|herramientas)\b(?!.{0,60}\b(?:falla|funciona|es|son|está)n?\b)",
    r"(?:tod[oa]s l[oa]s |l[oa]s )?(?:horas|fechas|precios|respuestas|comentarios"
    r"|mensajes de commit"
    r"|nombres) (?:siempre )?en (?:utc|español|inglés|euros|iso)\w*[.!]*$",
    r"(?:tutéame|trátame de|llámame (?-i:[A-ZÁÉÍÓÚ])|s[eé] (?:breve|concis[oa]|direct[oa]))",
    r"prefiero (?!(?:el|la|los|las|est[ea]|es[ea])\b)\w",
    # Turkish
    r"her \w+(?:ten|tan|den|dan|te|ta|de|da) (?:sonra|önce)?.{2,50}"
    r"(?:çalıştır|yap|güncelle|göster|sor|yaz|ekle|test et)(?:[ıiuü]n)?[.!]*$",
    r"her (?:ceva|yanıt|mesaj|commit|bölüm|adım|değişikli)\w* (?:sonunda|başında|altında"
    r"|içinde) \w",
    r".{2,40}m[ae]dan önce .{2,30}(?:sor|çalıştır|yap|göster|kontrol et"
    r"|haber ver)(?:[ıiuü]n)?[.!]*$",
    r"(?:\w+ ){0,3}(?:yanıt|cevap|yorum|açıklama|mesaj|commit)\w* .{0,25}\b(?:türkçe|ingilizce"
    r"|kısa|net)"
    r" (?:ver|yaz|tut)(?:[ıiuü]n)?[.!]*$",
    r"(?:lütfen )?(?:\w+ ){1,4}(?:kullanma|dokunma|silme|yazma|ekleme|değiştirme)(?:y[ıi]n)?,? ?"
    r"(?:lütfen)?[.!]*$",
    r"(?:sadece|yalnızca) (?!bu\b).{3,40} kullan(?:[ıi]n)?[.!]*$",
    r"\w+ kullan, \w+ değil[.!]*$",
    r".{3,50} yasak(?:tır)?[.!]*$",
    r"bana (?-i:[A-ZÇĞİÖŞÜ])\w+ de[.!]*$",
    r"(?:kısa (?:tut|kes|ol|yaz)|\w+ (?:klasörüne|dosyasına|dalına) dokunma)(?:[ıiuü]n)?[.!]*$",
]
_IN_OTHER_SCRIPTS = [
    # Chinese
    r"(?:请)?(?:你的)?(?:所有)?(?:回答|回复|答复|输出|注释|文档|提交信息|变量名|代码注释|时间|日期)"
    r"(?:请|要|都|应|尽量|一定|全部|始终|必须|统一|只)*(?:用|使用|以|简短|简洁|尽量|保持|控制)(?!了|过|的是|完|光)",
    r".{1,10}(?:里|中|内)(?:请)?(?:不要|别|禁止|不准|不得)(?!.{0,20}[了?？]).",
    r"(?:以后|今后|从此)?(?:请)?叫我(?!.{0,4}(?:来|去|起|回|做|干)).{1,8}$",
    r"(?:请)?(?:只能|只准|只许|仅限|只可以|仅可)(?:使?用|改|修改|动|读)",
    r"我(?:更喜欢|偏好|比较喜欢|不喜欢|不想要)(?!这|那|第|你).{0,3}(?:用|使用|看|你用|简|表情|注释|长)",
    r"(?:每次|任何)?(?:提交|推送|删除|修改|合并|部署|运行|安装|改动)[^，,]{0,8}[之以]?前[，,]?(?:请|都|要"
    r"|必须|一定)?(?:先|要先)",
    r"每次(?!都).{1,15}[后前时](?:请|先|要|都|就)(?!.{0,12}(?:报错|崩溃|失败|出错|会|了)).{1,20}$",
    r"(?:如果|若)(?:你)?(?:不确定|不清楚|有疑问|拿不准).{0,10}(?:问|告诉|说)",
    r"(?:不要|别|请勿|切勿)(?:使用|加|写|用)(?:表情|注释|emoji)",
    r"(?:请)?(?:一次|每次)只(?:能)?(?:问|做|提|改)",
    # Japanese
    r".{1,25}(?:たびに|度に|ごとに|毎に)(?!エラー|落ち|失敗).{1,40}(?:ください|下さい|お願いします|こと|して)[。！]?$",
    r".{1,20}だけ(?:を)?使(?:うこと|ってください|って下さい|用すること|用してください)[。！]?$",
    r".{1,20}(?:する|の|行う)前に(?:は|、)?.{1,40}(?:ください|下さい|お願いします|こと)[。！]?$",
    r".{1,25}(?:は|を)(?:使用)?(?:禁止|不要|厳禁|不可)(?:です|とします|する)?[。！]?$",
    r".{1,25}(?:と呼んで|呼び捨てに)",
    r"(?:回答|返答|返事|説明|コメント|コミットメッセージ|文章|時刻|日付|変数名)は.{1,20}"
    r"(?:で(?:お願いします|書くこと|統一)|にして|ください|こと)",
    r"(?:敬語|丁寧語|タメ口|標準語|日本語|英語)で(?:話して|答えて|返事して|回答して)",
    r"(?:わからない|不明な|迷った|不確かな)(?:場合|時|とき|点).{1,30}(?:ください|下さい|こと)[。！]?$",
    r".{1,20}(?:一つ|ひとつ|1つ)ずつ.{0,20}(?:ください|お願いします|こと|して)[。！]?$",
    # Korean
    r".{1,25}때마다 .{1,40}(?:세요|십시오|줘|주라|할 것|해라)[.!]?$",
    r"(?:답변|대답|응답|설명|주석|커밋 메시지|문서|시간|날짜|변수명?)[은는도] .{1,25}"
    r"(?:세요|십시오|줘|할 것|해라)[.!]?$",
    r".{1,20}만 (?:사용|써|쓰)(?:하세요|해 ?주세요|해줘|할 것|세요|줘| ?주세요)[.!]?$",
    r".{1,20}(?:하|기|삭제|커밋|푸시|배포) ?전에(?:는)? .{1,30}(?:세요|십시오|줘|할 것)[.!]?$",
    r"모든 (?:답변|대답|커밋|함수|코드|주석|시간|날짜)\w*[ ].{1,30}(?:세요|줘|할 것)[.!]?$",
    r".{0,20}(?:하나씩|한 번에 하나).{0,20}(?:세요|줘|할 것)[.!]?$",
    r".{2,30} 금지(?:입니다|다|야)?[.!]?$",
    r".{1,20}(?:이?라고) 불러",
    r"(?:존댓말|반말|높임말)[을로]? .{0,10}(?:세요|줘|해)[.!]?$",
]


def _any_of(wordings: list[str], start: str = "") -> re.Pattern[str]:
    return re.compile(f"{start}(?:{'|'.join(wordings)})", re.IGNORECASE)


_ENGLISH = _any_of(_IN_ENGLISH, _START)
_LATIN = _any_of(_IN_OTHERS, "^")
_OTHERS = _any_of(_IN_OTHER_SCRIPTS, "^")

# What holds for one step of the work, or tells what happened.
_ONCE = re.compile(
    r"\b(?:this time|for now|right now|just now|not now|today|tonight|tomorrow|yesterday"
    r"|this once|at the moment|so far|anymore|any more|not yet|yet(?=[.!]*$)|try again"
    r"|this (?:one|string|line|step|file|function|snippet|test|line|change|commit|branch"
    r"|paragraph|question"
    r"|message|task|table|section|sentence|case|run|example|script|method|class|page|pr|list|text)"
    r"|these|those|the following|(?:attached|above|below)(?=[.!]*$)"
    r"|diesmal|jetzt gerade|heute|morgen|vorerst|cette fois|pour l['’]instant|aujourd['’]hui|demain"
    r"|esta vez|por ahora|hoy|mañana|bu sefer|şimdilik|bugün)\b"
    r"|这次|这一次|暂时|今天|这个文件|今回|今日|とりあえず|このファイル|이번|지금은|오늘|이 파일",
    re.IGNORECASE,
)


def is_habit(sentence: str) -> bool:
    """Whether a short sentence says how things are to be done each time."""
    if len(sentence) > LONGEST_HABIT or is_for_once(sentence):
        return False
    return bool(
        _ENGLISH.match(sentence)
        or _LATIN.match(sentence)
        or (not sentence.isascii() and _OTHERS.match(sentence))
    )


def is_for_once(sentence: str) -> bool:
    """Whether an order holds for the step at hand only."""
    return bool(_ONCE.search(sentence))
