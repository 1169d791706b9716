"""Which values are secrets, and what becomes of them."""

from __future__ import annotations

import base64
import hashlib
import random
import uuid

import llm
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm.parts import TextPart, ToolCallPart, ToolResultPart

from llm_compact.redaction import redacted, redacted_message, secrets_in, texts_of

# Put together here, so that no scanner of repositories takes them for real ones.
LETTERS = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6lM9o"
KEY_LINES = "\n".join(
    base64.b64encode(hashlib.sha384(bytes([n])).digest()).decode() for n in range(9)
)
PRIVATE_KEY = (
    f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{KEY_LINES}\nab==\n-----END RSA PRIVATE {'KEY'}-----"
)
JWT = ".".join("eyJ" + LETTERS[n : n + 20] for n in range(2)) + "." + LETTERS

SECRETS = {
    "OpenAI": ("OPENAI_API_KEY={}", f"sk-proj-{LETTERS}"),
    "Anthropic": ("the key {} works", f"sk-ant-api03-{LETTERS}"),
    "GitHub": ("git clone with {}", f"ghp_{LETTERS[:36]}"),
    "GitHub, fine-grained": ("({})", f"github_pat_{LETTERS}"),
    "GitLab": ("token {}.", f"glpat-{LETTERS[:20]}"),
    "Slack": ('"{}"', f"xoxb-123456789012-{LETTERS[:24]}"),
    "Slack webhook": ("https://hooks.slack.com/services/{}", f"T0{LETTERS[:8]}/B0/{LETTERS[:24]}"),
    "Stripe": ("stripe {}", f"sk_live_{LETTERS[:24]}"),
    "Google": ("key={}", f"AIza{LETTERS[:35]}"),
    "AWS id": ("aws_access_key_id = {}", "AKIA" + LETTERS[:16].upper()),
    "AWS secret": ("AWS_SECRET_ACCESS_KEY={}", f"{LETTERS[:20]}/{LETTERS[:18]}"),
    "AWS secret without a digit in most of it": (
        "aws_secret_access_key = {}",
        f"wJalr{'XUtnFEMI'}/K7MDENG/bPxRfiCYzXyWvTuKEY",
    ),
    "Discord webhook": ("https://discord.com/api/webhooks/1234567890/{}", f"{LETTERS}_x"),
    "Azure": ("AccountName=tides;AccountKey={};", f"{LETTERS}{LETTERS[:30]}=="),
    "Hugging Face": ("HF {}", f"hf_{LETTERS[:34]}"),
    "npm": ("//registry.npmjs.org/:_authToken={}", f"npm_{LETTERS[:36]}"),
    "PyPI": ("password = {}", f"pypi-{LETTERS}{LETTERS}"),
    "JWT": ("set-cookie: session={}", JWT),
    "bearer": ("Authorization: Bearer {}", LETTERS[:24]),
    "basic": ('{{"authorization": "Basic {}"}}', f"{LETTERS[:18]}=="),
    "URL": ("postgres://tide:{}@db.example/tides", "n0t-so-secret"),
    "password": ("password: {}", "hunter2-and-3"),
    "password in JSON": ('{{"password": "{}"}}', "Tide!water"),
    "password in JSON in JSON": ('"{{\\"password\\": \\"{}\\"}}"', "hunter22"),
    "password in YAML": ("DB_PASSWORD={}\n", "q9!x7?zz"),
    "password in prose": ("My password is {}, by the way", "hunter2"),
    "password in Markdown": ("**Password:** `{}`", "hunter22"),
    "key in Markdown": ("- **API key:** `{}`", LETTERS[:24]),
    "password for something": ("The password for the admin account is {}.", "hunter2!x"),
    "password in German": ("Das Passwort lautet {}", "hunter2!x"),
    "password in Chinese": ("密码是{}", "hunter22"),
    "option": ("mysql --password {}", "hunter22"),
    "curl": ("curl -u bob:{} https://x.example", "pa55word"),
    "password, abbreviated": ("user: bob\npw: {}", "hunter22"),
    "pass": ("pass: {}", "hunter2!x"),
    "pass in the environment": ("SMTP_PASS={}\n", "hunter22"),
    "pass of openssl": ("openssl rsa -passin pass:{} -in key", "hunter22"),
    "passphrase": ('password: "{}"', "three words here"),
    "passphrase in JSON in JSON": (
        '"{{\\"password\\": \\"{}\\"}}"',
        "correct horse battery staple",
    ),
    "mysql": ("mysql -h db.example -u root -p{} tides", "hunter"),
    "mysql, quoted": ("mysqldump -p'{}' tides", "high water"),
    "sshpass": ("sshpass -p {} ssh bob@x.example", "hunter"),
    "sshpass, quoted": ('sshpass -p "{}" ssh bob@x.example', "high water"),
    "cookie": ("Cookie: session={}\n", LETTERS[:24]),
    "cookies": ('curl -H "Cookie: theme={}" https://x.example', f"dark; sid={LETTERS[:24]}; n=1"),
    "cookie that is set": ("set-cookie: sid={}; HttpOnly", LETTERS[:24]),
    "cookie of curl": ("curl --cookie 'sid={}' https://x.example", LETTERS[:24]),
    "token in a URL": ("git clone https://{}@git.example/a/b.git", LETTERS[:24]),
    "Telegram": ("bot 123456789:{}.", f"AA{LETTERS[:33]}"),
    "behind a letter that gets longer": ("İİİ password={}", "hunter2-and-3"),
    "query": ("https://x.example/a?token={}&page=2", LETTERS[:32]),
    "private key": ("here:\n{}\nthat was it", PRIVATE_KEY),
    "private key in JSON": ('{{"key": "{}"}}', PRIVATE_KEY.replace("\n", "\\n")),
    "private key, cut off": ("{}", PRIVATE_KEY[:300].rsplit("\n", 1)[0]),
}


@pytest.mark.parametrize("around, secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_replaced_and_what_stands_around_it_stays(around: str, secret: str) -> None:
    before, after = around.format("|").split("|")

    text = redacted(around.format(secret))

    assert secret not in text and not any(line in text for line in secret.splitlines()[1:-1])
    assert text.startswith(before + "[redacted: ") and text.endswith("]" + after)
    assert redacted(text) == text


DIGEST = hashlib.sha256(b"tide")
NO_SECRETS = [
    f"commit {hashlib.sha1(b'tide').hexdigest()} and {DIGEST.hexdigest()[:7]}",
    f"sha256:{DIGEST.hexdigest()}",
    f"id {uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)}",
    f"data:image/png;base64,{base64.b64encode(DIGEST.digest() * 20).decode()}",
    '"integrity": "sha512-' + base64.b64encode(DIGEST.digest() * 2).decode() + '"',
    "01jm8ec74wxsdatyn5pq1fp0s5 TIDE-214 resp_0a1b2c3d4e5f toolu_01A09q90qw90lq917835lq9",
    "max_tokens=4000, tokens: 12345, token_count=77, 3 tokens 1234567890123456",
    "api_key = os.environ['TIDE_API_KEY_2']",
    'password = getpass("Password: ")',
    "password: str, token: string, secret: required",
    "def login(self, user, password=None, token=self.settings.token1)",
    "OPENAI_API_KEY=sk-... and ANTHROPIC_API_KEY=your-key-here",
    "password=${DB_PASSWORD1} password=<your-password> password=changeme password: ********",
    "postgres://user:$PASSWORD@db/x and http://localhost:8080/a@b and ssh://git@x.example:22/a",
    '"nextPageToken": "CAoQAA1234567890abcd", page_token=abc123def456ghi789',
    ".sk-folding-cube-and-other-spinners-in-css { } and task-sk-learn",
    "docker run -u 1000:1000 image; git push -u origin main",
    "The secret of the tides is the moon. A token of thanks. Password required.",
    "secretary, tokenizer, passwordless login; /run/secrets/key1 token: /etc/token12345678",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END CERTIFICATE-----",
    "git push -p main; mkdir -p dir12; ssh -p 2222 bob@x.example; grep -p4ssw0rd file",
    "docker run mysql -p3306:3306, docker run mysql -p127.0.0.1:3306:3306, mysql -p tides1",
    "mysql -u root -p$MYSQL_PASSWORD1 tides; sshpass -p '<password>' ssh x; mysql -p",
    "pass: 3 of 5 tests, pass: 120ms/op, 1st pass: collect4all.py, --- PASS: TestTides2 (0.00s)",
    "compass: north12345, bypass=rule12345, pw: str, pass: undefined, pass = settings.smtp_pass1",
    "https://bob@host.example git@github.com:a/b.git https://github.com/a/b ssh://git@x.example/a",
    "https://firstname.lastname@git.example/a https://x.example/@scope/name@1.2.3",
    f"a cookie sha1={DIGEST.hexdigest()[:12]}",
    "Cookie: theme=dark; lang=en, cookie=document.cookie, cookies: 12, Set-Cookie: a=b; Path=/",
    'password: "Must be at least 8 characters", "password": "wrong user or password"',
    '"password": "mot de passe oublié", password: "neues Passwort eingeben"',
    'password: "at least 8 letters, a digit and a sign", password = "", user = "bob the builder"',
    "trackingnumber 1Z999AA10123456784, order 123456789:AB, IBAN DE89370400440532013000",
]


@pytest.mark.parametrize("text", NO_SECRETS)
def test_what_is_no_secret_stays_word_for_word(text: str) -> None:
    assert redacted(text) == text


def test_a_known_secret_is_found_where_nothing_tells_what_it_is() -> None:
    known = secrets_in(["password: hunter2-and-3", "my password: tide1"])

    assert redacted("They log in with hunter2-and-3 at tide1.", known) == (
        "They log in with [redacted: secret] at tide1."
    )


def test_a_message_is_redacted_in_all_of_its_parts() -> None:
    arguments = {"password": "hunter2-and-3", "deep": [{"env": f"K=sk-proj-{LETTERS}"}], "n": 1}
    message = llm.Message(
        role="assistant",
        parts=[
            TextPart(text=f"I use ghp_{LETTERS[:36]}"),
            ToolCallPart(name="login", arguments=arguments, tool_call_id="c"),
            ToolResultPart(
                name="x", output=PRIVATE_KEY, exception="postgres://u:hunter2@db failed"
            ),
        ],
    )

    said = str(redacted_message(message))

    assert said.count("[redacted: ") == 5
    assert "hunter2" not in said and LETTERS[:36] not in said
    # A key is recognized anywhere, and hunter2 alone is too short to be looked for.
    assert secrets_in(texts_of(message)) == {"hunter2-and-3"}


def test_a_message_without_a_secret_is_itself() -> None:
    message = llm.assistant("High water", ToolCallPart(name="a", arguments={"token": "abc"}))

    assert redacted_message(message) is message


@given(st.text(), st.sampled_from(list(SECRETS.values())))
def test_redacting_twice_changes_nothing(text: str, secret: tuple[str, str]) -> None:
    once = redacted(f"{text}\n{secret[0].format(secret[1])}\n{text}")

    assert redacted(once) == once


def test_a_text_made_to_take_long_takes_no_longer_than_another() -> None:
    """Each of these would take minutes if the time grew with the square of the length."""
    seed = random.Random(1)
    letters = "".join(seed.choice("abcdefghij0123456789") for _ in range(300_000))
    for text in (
        "-----BEGIN PRIVATE KEY-----\n" * 10_000,
        "password" * 40_000,
        "token=" * 50_000,
        "://" + letters,
        "eyJ" * 100_000,
        "sk-" + letters,
        "Bearer " * 40_000,
        "-u a:" * 60_000,
        "password = a1b2c3!x\n" * 10_000,
        "pass: " * 40_000,
        "mysql -" * 30_000,
        "mysql " + " -p" * 60_000,
        "sshpass -p '" * 20_000,
        "cookie: a" + "; a=b" * 40_000,
        "cookie=a" * 30_000,
        "https://" + letters,
        'password: "' + "a b " * 60_000,
    ):
        assert redacted(text)
