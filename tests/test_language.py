"""Which language a conversation is in."""

from __future__ import annotations

import llm
import pytest

from llm_compact.language import language_of, words

SAID = {
    "en": "When is high water in Esbjerg, and what is the level?",
    "zh": "埃斯比约的高潮是什么时候？请看 docs/tides.md 里的表。",
    "ja": "エスビャウの満潮は何時ですか。潮汐表を見てください。",
    "ko": "에스비에르의 만조는 언제입니까? 조석표를 봐 주세요.",
    "de": "Wann ist das Hochwasser in Esbjerg, und wie hoch ist der Pegel?",
    "fr": "À quelle heure est la pleine mer à Esbjerg, et quel est le niveau pour nous ?",
    "es": "¿A qué hora es la pleamar en Esbjerg y cuál es el nivel del agua para hoy?",
    "pt": "A que horas é a maré alta em Esbjerg e qual é o nível da água? Não sei.",
    "it": "A che ora è l'alta marea a Esbjerg e qual è il livello della costa?",
    "tr": "Esbjerg'de gelgit ne zaman ve su seviyesi ne kadar? Bu bir soru mu?",
    "ru": "Когда прилив в Эсбьерге и какой уровень воды?",
}


@pytest.mark.parametrize("code, text", SAID.items(), ids=SAID)
def test_the_users_language(code: str, text: str) -> None:
    assert language_of([llm.user(text)]) == code


def test_english_logs_do_not_make_a_chinese_conversation_english() -> None:
    log = "ERROR the tide table of the station is not there\n" * 200
    messages = [
        llm.user(SAID["zh"]),
        llm.tool_message(llm.parts.ToolResultPart(name="cat", output=log)),
        llm.assistant("The table says that it is at 06:15."),
    ]

    assert language_of(messages) == "zh"


def test_nothing_said_is_english() -> None:
    assert language_of([]) == "en"
    assert language_of([llm.user("42")]) == "en"


@pytest.mark.parametrize("code", SAID)
def test_every_language_has_all_the_words(code: str) -> None:
    said = words(code)

    assert said.keys() == words("en").keys()
    assert "{n}" in said["request"] and "{messages}" in said["record"] and "{n}" in said["record"]
    assert all(text.strip() for text in said.values())


def test_a_language_that_we_do_not_speak_gets_english_words() -> None:
    assert words("xx") == words("en")


def test_a_pasted_error_does_not_outvote_what_the_user_says() -> None:
    error = "Traceback (most recent call last): the table of the station is not there\n" * 50
    messages = [llm.user(SAID["ja"]), llm.user(f"これは何ですか。\n{error}"), llm.user(error)]

    assert language_of(messages) == "ja"


@pytest.mark.parametrize(
    "text",
    [
        "Jag vill veta när det är högvatten i Göteborg idag",
        "Hvornår er det højvande i Esbjerg i dag, og hvor højt?",
        "Wanneer is het hoogwater in Rotterdam vandaag?",
        "Kiedy jest dziś przypływ w Gdańsku i jak wysoki?",
    ],
)
def test_a_language_that_we_do_not_speak_is_taken_for_none_of_ours(text: str) -> None:
    assert language_of([llm.user(text)] * 5) == "en"
