"""A real model with a window of 512 tokens: SmolLM2, in processes of its own, with a real log.

Its answers are its own business. What counts is what it is sent, and what stands in the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Log
from llm.parts import Message
from processes import Done, Llm, Request, run_llm, texts

from llm_compact.conversation import text_of

SYSTEM = "You keep the log book of a boat."
# Together more than the window. Each group is said in one process, so it must fit with its answers.
CHAT = (
    (
        "Our boat is called Havhesten. She lies at berth C-17 in Esbjerg, and the spare key hangs "
        "behind the chart table, next to the fire extinguisher.",
        "The skipper is Maren Kjeldsen, her number is 7548-2210. Call her before nine in the "
        "morning, she works at night.",
        "From now on, always give times in UTC. The crew comes from three countries, and last year "
        "we missed a tide because of it.",
    ),
    (
        "We decided to sail on Thursday at 06:42, because the tide turns then. Friday was the "
        "other choice, but the forecast speaks of a storm.",
        "The harbour office charges 340 kroner a night. We paid until Wednesday, and the receipt "
        "is in the blue folder.",
        "We take 60 litres of water and food for five days. Jonas buys it on Tuesday at the shop "
        "in Kirkegade 12.",
    ),
    (
        "The chart of the German Bight is from 2019. A newer one costs 45 euros, and we ordered it "
        "at nv-charts.de.",
        "The engine needs 4.5 litres of oil of the kind 15W-40. The old oil goes to the yard, not "
        "into the sea.",
        "The first leg goes to Hvide Sande, 38 nautical miles. The bridge there opens only on the "
        "hour.",
    ),
    (
        "The radio's number is MMSI 219017864. The call sign is OXHA2, and both are written above "
        "the table.",
        "The life raft was checked in May. The next check is due in May 2028, by the firm in Ribe.",
        "Sofie is seasick easily, so she takes the first watch in the fresh air. Jonas takes the "
        "second.",
    ),
)
BRIEFLY = "Answer with OK."
DECISION = "We decided to sail on Thursday at 06:42"

EXTRACTIVE = ("-m", "extractive")
SMOLLM2 = ("-m", "SmolLM2", "--window", "512")


@dataclass
class Compacted:
    """A user directory with a compacted chat, and the process that compacted it."""

    user_path: Path
    done: Done


def as_sent(chain: Sequence[Message], *more: str) -> Request:
    """A chain of messages, and what the user says then, as the model has to be sent them."""
    told = [{"role": message.role, "content": text_of(message)} for message in chain]
    return [*told, *({"role": "user", "content": text} for text in more)]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user directory with the chat, as SmolLM2 answered it."""
    user_path = tmp_path_factory.mktemp("chat")
    for number, group in enumerate(CHAT):
        how = ["-c"] if number else ["-m", "SmolLM2", "-s", SYSTEM]
        said = [*(f"{text} {BRIEFLY}" for text in group), "quit"]
        done = run_llm(user_path, "chat", *how, said=said)
        assert done.returncode == 0, done.stderr
    return user_path


@pytest.fixture(scope="module", params=[EXTRACTIVE, SMOLLM2], ids=["extractive", "SmolLM2"])
def compacted(
    request: pytest.FixtureRequest, chat: Path, tmp_path_factory: pytest.TempPathFactory
) -> Compacted:
    user_path = tmp_path_factory.mktemp("compacted") / "user"
    shutil.copytree(chat, user_path)
    done = run_llm(user_path, "compact", "-c", *request.param)
    assert done.returncode == 0, done.stderr
    return Compacted(user_path, done)


@pytest.fixture
def llm(user_path: Path) -> Llm:
    """Run llm in this test's user directory."""

    def _llm(*args: str, said: Sequence[str] = ()) -> Done:
        return run_llm(user_path, *args, said=said)

    return _llm


def test_the_compacted_chat_is_stored_as_it_was_shown(
    compacted: Compacted, user_path: Path, log: Log
) -> None:
    shutil.copytree(compacted.user_path, user_path)
    source, new = log.threads()

    original, chain = log.messages(source["id"]), log.messages(new["id"])

    assert [text_of(m) for m in original if m.role == "user"] == [
        f"{text} {BRIEFLY}" for group in CHAT for text in group
    ]
    assert [m.role for m in chain[:3]] == ["system", "user", "assistant"]
    assert text_of(chain[0]) == SYSTEM
    assert text_of(chain[2]) == compacted.done.stdout.strip()
    assert chain[3:] == original[-4:]


def test_each_summarized_message_reaches_a_model_that_summarizes_in_512_tokens(
    chat: Path, user_path: Path, log: Log, llm: Llm
) -> None:
    shutil.copytree(chat, user_path)
    original = log.messages()

    done = llm("compact", "-c", *SMOLLM2)

    assert done.returncode == 0, done.stderr
    shown = texts(done.sent)
    assert [text_of(m) for m in original[1:-4] if text_of(m) not in shown] == []
    row = next(log.db["compactions"].rows)
    assert (row["summarizer"], row["calls"]) == ("SmolLM2", len(done.sent))


def test_the_window_is_learned_from_the_error_of_the_model(
    chat: Path, user_path: Path, log: Log, llm: Llm
) -> None:
    shutil.copytree(chat, user_path)

    done = llm("compact", "-c", "-m", "SmolLM2")

    assert done.returncode == 0, done.stderr
    assert len(log.threads()) == 2


def test_extractive_calls_no_model_and_keeps_what_was_decided(
    chat: Path, user_path: Path, log: Log, llm: Llm
) -> None:
    shutil.copytree(chat, user_path)

    done = llm("compact", "-c", *EXTRACTIVE)

    assert (done.returncode, done.sent) == (0, [])
    assert DECISION in done.stdout


def test_llm_goes_on_with_the_compacted_chat(
    compacted: Compacted, user_path: Path, log: Log, llm: Llm
) -> None:
    shutil.copytree(compacted.user_path, user_path)
    original, chain = (log.messages(thread["id"]) for thread in log.threads())
    question = "When do we sail?"

    done = llm("-c", question)

    assert done.returncode == 0, done.stderr
    assert done.sent == [as_sent(chain, question)]
    assert done.stdout.strip()
    source, new = log.threads()
    assert log.messages(source["id"]) == original
    assert log.messages(new["id"])[: len(chain)] == chain
    assert [text_of(m) for m in log.messages(new["id"])[len(chain) :]] == [
        question,
        done.stdout.rstrip("\n"),
    ]


def test_llm_chat_goes_on_with_the_compacted_chat(
    compacted: Compacted, user_path: Path, log: Log, llm: Llm
) -> None:
    shutil.copytree(compacted.user_path, user_path)
    original, chain = (log.messages(thread["id"]) for thread in log.threads())
    questions = [f"When do we sail? {BRIEFLY}", f"Where does the boat lie? {BRIEFLY}"]

    done = llm("chat", "-c", said=[*questions, "quit"])

    assert done.returncode == 0, done.stderr
    source, new = log.threads()
    assert log.messages(source["id"]) == original
    stored = log.messages(new["id"])
    assert stored[: len(chain)] == chain
    assert [m.role for m in stored[len(chain) :]] == ["user", "assistant"] * 2
    assert done.sent == [
        as_sent(chain, questions[0]),
        as_sent(stored[: len(chain) + 2], questions[1]),
    ]


def test_what_was_decided_before_the_cut_is_sent_again_by_each_process(
    chat: Path, user_path: Path, log: Log, llm: Llm
) -> None:
    shutil.copytree(chat, user_path)
    llm("compact", "-c", *EXTRACTIVE)

    prompt = llm("-c", f"When do we sail? {BRIEFLY}")
    turn = llm("chat", "-c", said=[f"And why? {BRIEFLY}", "quit"])

    assert (prompt.returncode, turn.returncode) == (0, 0)
    assert DECISION in texts(prompt.sent)
    assert DECISION in texts(turn.sent)
    assert "When do we sail?" in texts(turn.sent)
