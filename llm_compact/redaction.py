"""Secrets: API keys, tokens, passwords and private keys, found offline and replaced.

A table of what such values look like, and of the names that they are given. What has neither a
known form nor a name is left alone: git hashes, UUIDs, base64 and ids are values that a summary
must keep. (detect-secrets takes each word of prose for one, and reads 0.2 MB a second.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llm.parts import Message, Part, TextPart, ToolCallPart, ToolResultPart

from .language import lower_in_place

if TYPE_CHECKING:
    from .summary import Head

SHORTEST_KNOWN = 8
"A shorter secret is not looked for where nothing says that it is one: it may be a word."


@dataclass(frozen=True)
class _Kind:
    """What one kind of secret looks like. Group 1, where there is one, is the secret."""

    name: str
    begins: tuple[str, ...]
    "What the pattern begins with, in lower case: that is found faster than the pattern."
    pattern: re.Pattern[str]
    is_secret: Callable[[str], bool] = bool
    is_named: bool = False
    "Whether only what stands around it tells what it is."


def redacted(text: str, known: Collection[str] = ()) -> str:
    """The text with a placeholder for each secret, and for each of those that are `known`.

    Takes time in proportion to the text. What is redacted already stays as it is.
    """
    pieces, position = [], 0
    for start, end, name in _found(text):
        pieces += [text[position:start], f"[redacted: {name}]"]
        position = end
    text = "".join([*pieces, text[position:]])
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, "[redacted: secret]")
    return text


def secrets_in(texts: Iterable[str]) -> frozenset[str]:
    """The secrets in some texts that nothing would tell elsewhere, such as passwords."""
    return frozenset(
        secret
        for text in texts
        for start, end, _ in _found(text, _NAMED)
        if len(secret := text[start:end]) >= SHORTEST_KNOWN and _is_mixed(secret)
    )


def redacted_message(message: Message, known: Collection[str] = ()) -> Message:
    """The message with a placeholder for each secret, known ones too; itself where it has none."""
    parts = [_redacted_part(part, known) for part in message.parts]
    changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
    return replace(message, parts=parts) if changed else message


def without_secrets(head: Head) -> Head:
    """The head as it may be sent to anybody."""
    clean: dict[int, Message] = {}

    def cleaned(messages: Sequence[Message]) -> tuple[Message, ...]:
        for message in messages:
            if id(message) not in clean:
                clean[id(message)] = redacted_message(message, head.secrets)
        return tuple(clean[id(message)] for message in messages)

    return replace(
        head,
        messages=cleaned(head.messages),
        originals=cleaned(head.originals),
        previous=redacted(head.previous, head.secrets) if head.previous else None,
        focus=redacted(head.focus, head.secrets) if head.focus else None,
    )


def texts_of(message: Message) -> Iterator[str]:
    """All texts of a message in which a secret may stand."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield part.text
        elif isinstance(part, ToolCallPart):
            yield from _strings(part.arguments)
        elif isinstance(part, ToolResultPart):
            yield part.output
            yield part.exception or ""


def _strings(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        yield f"{name}={value}" if name else value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, name)


def _redacted_part(part: Part, known: Collection[str]) -> Part:
    if isinstance(part, TextPart):
        text = redacted(part.text, known)
        return part if text == part.text else replace(part, text=text)
    if isinstance(part, ToolCallPart):
        arguments = _redacted_value(part.arguments, known)
        return part if arguments == part.arguments else replace(part, arguments=arguments)
    if isinstance(part, ToolResultPart):
        output = redacted(part.output, known)
        exception = redacted(part.exception or "", known) or None
        if output == part.output and exception == (part.exception or None):
            return part
        return replace(part, output=output, exception=exception)
    return part


def _redacted_value(value: Any, known: Collection[str], name: str = "") -> Any:
    if isinstance(value, str):
        # An argument's name may be all that tells what it is.
        with_name = redacted(f"{name}={value}")
        return redacted(with_name[len(name) + 1 :] if name else value, known)
    if isinstance(value, dict):
        return {key: _redacted_value(inner, known, str(key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redacted_value(inner, known, name) for inner in value]
    return value


def _found(text: str, kinds: Sequence[_Kind] | None = None) -> list[tuple[int, int, str]]:
    """(start, end, name) of each secret, in order; where two overlap, the first one."""
    if kinds is None:
        kinds = _KINDS if _LONG_WORD.search(text) else _NAMED
    lower = lower_in_place(text)
    found = []
    for kind in kinds:
        for match in _matches(kind, text, lower):
            start, end = match.span(match.lastindex or 0)
            if kind.is_secret(text[start:end]):
                found.append((start, -end, kind.name))
    chosen: list[tuple[int, int, str]] = []
    for start, negative_end, name in sorted(found):
        if not chosen or start >= chosen[-1][1]:
            chosen.append((start, -negative_end, name))
    return chosen


def _matches(kind: _Kind, text: str, lower: str) -> Iterator[re.Match[str]]:
    is_ascii = text.isascii()
    for begin in kind.begins:
        position = lower.find(begin) if begin.isascii() or not is_ascii else -1
        while position >= 0:
            match = kind.pattern.match(text, position)
            if match:
                yield match
            position = lower.find(begin, match.end() if match else position + len(begin))


def _is_mixed(value: str) -> bool:
    """Whether a value has letters and digits, as what is made up at random has."""
    return bool(re.search(r"\d", value) and re.search(r"[^\W\d_]", value))


def _is_random(value: str) -> bool:
    """Whether a value can have been made up at random: no word, path, variable or call."""
    return _has_random_run(value) and not _UUID.fullmatch(value)


def _has_random_run(value: str) -> bool:
    return any(_is_mixed(run) for run in re.findall(r"[A-Za-z0-9]{10,}", value))


def _is_named_token(value: str) -> bool:
    return len(value) >= 16 and _is_random(value) and not _is_code(value)


def _is_password(value: str) -> bool:
    """Whether what is called a password is one, and no placeholder, type or variable."""
    is_word = value.isalpha() and (value.islower() or value.istitle())
    return not (is_word or value.isdigit() or _PLACEHOLDER.match(value) or _is_code(value))


def _is_mixed_password(value: str) -> bool:
    return _is_mixed(value) and _is_password(value)


def _is_passphrase(value: str) -> bool:
    """Whether several words are what somebody types, and no sentence about it or label of it."""
    return len(value.split()) >= 3 and not (_SENTENCE.search(value) or _PLACEHOLDER.match(value))


def _is_code(value: str) -> bool:
    return bool(_CODE.match(value))


_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLACEHOLDER = re.compile(
    r"[$%*<{\[]|(?:your|my|some|example|test|dummy|fake|change)[-_ ]?(?:pass|secret|key|token|me)"
    r"|pass(?:word|wd)?$|x{3,}|\.{3}|\*+$|[A-Z]+(?:_[A-Z]+)+$",
    re.IGNORECASE,
)
# What stands for a value in a program: os.environ, settings.KEY, self.token, /run/secrets/key.
_CODE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]\w*)+|[a-z_]+$|[A-Z_]+$|\.{0,2}/|\w+://|\$|\w+\(")
# What a form says of a password in some language, as opposed to one of several words.
_SENTENCE = re.compile(
    r"^[A-Z][a-z]|[.!?:…]$|\b(?i:an?|and|are|as|at|be|by|can|character|field|for|from|has|have|if|in"
    r"|invalid|is|it|must|new|no|not|of|on|or|password|should|that|the|this|to|user|was|with|your"
    r"|clave|contraseña|das|de|dein|el|ihr|kennwort|la|le|mot|parola|passwort|senha|wachtwoord)\b",
)

_BREAK = r"(?:\s|\\[nrt]|\d+[→|:])"
_KEY_TEXT = "[A-Za-z0-9+/=]"
_END_OF_KEY = r"-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    rf"(?:{_BREAK}+[A-Z][\w-]{{2,20}}: [^\n\\]{{1,80}})*"
    rf"(?:{_BREAK}+{_KEY_TEXT}{{20,}})*"
    rf"(?:{_BREAK}+{_KEY_TEXT}{{1,76}}(?={_BREAK}*-----END))?"
    rf"(?:{_BREAK}*{_END_OF_KEY})?"
)
# What only its provider hands out, told by how it begins.
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"sk-[A-Za-z0-9_-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[\w-]{20,}"
    r"|xox[abposr]-[\w-]{10,}|xapp-[\w-]{20,}"
    r"|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{20,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|xai-[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{30,}"
    r"|pplx-[A-Za-z0-9]{30,}|tvly-[\w-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[0-9a-f]{40,}|dapi[0-9a-f]{32}|shp(?:at|ca|pa|ss)_\w{30,}"
    r"|hvs\.[\w-]{24,}|lin_api_\w{30,}|ntn_\w{30,}|sb_secret_\w{20,}|sbp_\w{30,}"
    r"|ATATT3[\w=-]{30,}|AGE-SECRET-KEY-1[A-Z0-9]{50,}"
    r")"
)
_ISSUED_BEGINS = (
    *("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "xapp-"),
    *("sk_", "rk_", "pk_", "whsec_", "aiza", "ya29.", "gocspx-", "hf_", "gsk_", "xai-", "r8_"),
    *("pplx-", "tvly-", "npm_", "pypi-", "sg.", "dop_v1_", "dapi", "shpat_", "shpca_", "shppa_"),
    *("shpss_", "hvs.", "lin_api_", "ntn_", "sb_secret_", "sbp_", "atatt3", "age-secret-key-1"),
)
# What is issued is long, and few texts have a word of this length.
_LONG_WORD = re.compile(r"[A-Za-z0-9_+/-]{15}|PRIVATE KEY")
_ASSIGNED = r"[\\\"'`\]*]{0,4}[ \t]{0,3}(?:=>|:=|={1,3}|:|：)(?:\*\*)?[ \t]{0,3}[\\\"'`*]{0,4}"
_NO_VALUE = r"\s\"'`\\,;&<>(){}\[\]|"
_VALUE = rf"([^{_NO_VALUE}]{{5,400}}[^{_NO_VALUE}.:?])"

_PASSWORD = "(?:password|passwd|passwort|passphrase|pwd)"

_KINDS = (
    _Kind("private key", ("-----begin ",), _PRIVATE_KEY),
    _Kind("API key", _ISSUED_BEGINS, _ISSUED, _is_random),
    _Kind(
        "AWS access key",
        ("akia", "asia"),
        re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        _is_mixed,
    ),
    _Kind("token", (":aa",), re.compile(r"(?<=\d{8}):(AA[\w-]{33})(?![\w-])")),
    _Kind(
        "token",
        ("eyj",),
        re.compile(r"(?<![A-Za-z0-9_])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    ),
    _Kind(
        "webhook",
        ("hooks.slack.com/services/",),
        re.compile(r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,})"),
    ),
    _Kind(
        "webhook",
        ("discord.com/api/webhooks/", "discordapp.com/api/webhooks/"),
        re.compile(r"discord(?:app)?\.com/api/webhooks/\d{5,30}/([\w-]{20,})"),
    ),
    # Letters, digits and slashes: a third of them has no digit where a word would have one.
    _Kind(
        "secret",
        ("secret_access_key", "secretaccesskey", "secret access key"),
        re.compile(
            rf"secret[_ ]?access[_ ]?key{_ASSIGNED}([A-Za-z0-9/+]{{40}})(?![A-Za-z0-9/+])",
            re.IGNORECASE,
        ),
        _is_mixed,
        is_named=True,
    ),
    _Kind(
        "credentials",
        ("authorization", "bearer"),
        re.compile(
            r"(?:authorization[\\\"']{0,2}\s{0,3}[:=]\s{0,3}[\\\"']{0,2}(?:basic|token|apikey)"
            r"|\bbearer)[ \t]{1,3}([A-Za-z0-9._~+/=-]{16,})",
            re.IGNORECASE,
        ),
        _is_mixed,
        is_named=True,
    ),
    _Kind(
        "password",
        ("://",),
        re.compile(r"://[^\s:/@'\"<>]{0,64}:([^\s/@'\"<>]{3,200})@"),
        lambda value: not _PLACEHOLDER.match(value),
        is_named=True,
    ),
    _Kind(
        "token",
        ("://",),
        re.compile(r"://([^\s:/@'\"<>]{16,200})@"),
        _is_named_token,
        is_named=True,
    ),
    # All cookies of a header, whichever of them it is that logs in.
    _Kind(
        "cookie",
        ("cookie",),
        re.compile(
            r"cookie(?:[\\\"']{0,2}[ \t]{0,3}:[ \t]{0,3}|(?<=--cookie)[ =])[\\\"']{0,2}"
            r"[\w.-]{1,64}=([^\s;,\"'\\]{1,4000}"
            r"(?:;[ ]?[\w.-]{1,64}=[^\s;,\"'\\]{1,4000}){0,50})",
            re.IGNORECASE,
        ),
        _has_random_run,
        is_named=True,
    ),
    _Kind(
        "password",
        ("passw", "passphrase", "pwd"),
        re.compile(
            rf"{_PASSWORD}(?:{_ASSIGNED}|[ \t]{{1,3}}(?=\S*\d)){_VALUE}",
            re.IGNORECASE,
        ),
        _is_password,
        is_named=True,
    ),
    _Kind(
        "password",
        ("passw", "passphrase", "pwd"),
        re.compile(
            rf"{_PASSWORD}{_ASSIGNED}(?<=[\"'`])([^\"'`\\\n]{{8,200}})(?=\\?[\"'`])",
            re.IGNORECASE,
        ),
        _is_passphrase,
        is_named=True,
    ),
    # A test runner prints "PASS: TestTides2", "pass: 120ms" and "pass: tests/test_tide1.py".
    _Kind(
        "password",
        ("pass", "pw"),
        re.compile(
            r"(?:(?<![\w.-])(?:[Pp]ass|[Pp]w|PW)|(?<=[A-Za-z]_)(?:pass|pw|PASS|PW))"
            rf"{_ASSIGNED}(?![\d.,:/]+[A-Za-z%]{{0,5}}\b|[\w./-]{{1,100}}\.[a-z]{{2,4}}\b)"
            rf"{_VALUE}"
        ),
        _is_mixed_password,
        is_named=True,
    ),
    # With a port it is an option of "docker run ... mysql".
    _Kind(
        "password",
        ("mysql", "mariadb"),
        re.compile(
            r"(?:mysql|mariadb)[\w-]{0,12}[ \t][^\n|;&]{0,100}?(?<=[ \t])-p(?![\d.]*:|\d{1,5}\b)"
            r"(?:\"([^\"\n]{3,100})\"|'([^'\n]{3,100})'|([^\s\"'`\\|;&)]{3,100}))"
        ),
        lambda value: not _PLACEHOLDER.match(value),
        is_named=True,
    ),
    _Kind(
        "password",
        ("sshpass",),
        re.compile(
            r"sshpass[ \t]{1,3}-p[ \t]{0,3}"
            r"(?:\"([^\"\n]{3,100})\"|'([^'\n]{3,100})'|([^\s\"'`\\|;&)]{3,100}))"
        ),
        lambda value: not _PLACEHOLDER.match(value),
        is_named=True,
    ),
    _Kind(
        "password",
        (
            *(
                "password is",
                "password for ",
                "passwort ist",
                "passwort lautet",
                "mot de passe",
                "senha",
                "parola",
            ),
            *("密码", "パスワード", "비밀번호", "пароль", "contraseña", "şifre"),
        ),
        re.compile(
            r"(?:password(?: for [\w .@'\"`-]{1,40}?)? is|passwort (?:ist|lautet)"
            r"|密码(?:是|为)?|パスワードは|비밀번호[는은]|пароль"
            r"|contraseña(?: es)?|senha(?: é)?|mot de passe(?: est)?|şifre(?:si|m)?|parola(?: è)?)"
            r"[ \t]{0,3}[:：=]?[ \t]{0,3}[\"'`“「]?"
            r"([!#-&*+\--:=?-Z^-z~]{5,100}[A-Za-z0-9!#$%&*+=@^~])",
            re.IGNORECASE,
        ),
        _is_mixed_password,
        is_named=True,
    ),
    _Kind(
        "secret",
        (
            *(
                "secret",
                "api_key",
                "api key",
                "apikey",
                "api-key",
                "access_key",
                "accesskey",
                "access-key",
            ),
            *("token", "accountkey", "amz-signature", "sig=", "private_key", "auth_key"),
        ),
        re.compile(
            r"(?:secret(?:[_-]?access)?(?:[_-]?key)?|api[ _-]?key|access[_-]?key|account[_-]?key"
            r"|auth[_-]?key|private[_-]?key|(?<!page)(?<!page_)(?<!next_)(?<!continuation_)token"
            r"|(?<=[?&])sig|amz-signature)"
            rf"(?:{_ASSIGNED}|[ \t])(?:Bearer )?{_VALUE}",
            re.IGNORECASE,
        ),
        _is_named_token,
        is_named=True,
    ),
    _Kind(
        "password",
        ("-u ", "--user "),
        re.compile(r"(?<=\s)(?:-u|--user)\s{1,3}[\"']?[\w.@+-]{1,64}:([^\s\"']{4,200})"),
        _is_mixed_password,
        is_named=True,
    ),
)
_NAMED = tuple(kind for kind in _KINDS if kind.is_named)
