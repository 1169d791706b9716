"""`llm compact` as a person uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import llm
import pytest
from click.testing import Result
from conftest import LONG, Log, Talk, recorded
from llm.parts import StreamEvent, TextPart
from scripted import Plugin, Reply

Run = Callable[..., Result]

ANSWER = "## Goal\nKnow the tides of six places.\n\n## Exact values\n- 06:15, 1.5 m"
SUMMARY = recorded(ANSWER)


def test_the_new_conversation_is_summary_and_recent_exchanges(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [ANSWER]
    source = log.messages(long_talk)

    result = run("compact", "-c")

    assert result.exit_code == 0
    assert result.stdout == SUMMARY + "\n"
    chain = log.messages()
    assert [m.role for m in chain] == ["system", "user", "assistant", *["user", "assistant"] * 2]
    assert chain[0].parts[0].text == "You know the tides."
    assert chain[2].parts[0].text == SUMMARY
    assert chain[3:] == source[-4:]


def test_the_closing_line_tells_what_happened_and_how_to_go_back(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [ANSWER]

    result = run("compact", "-c")

    (line,) = result.stderr.splitlines()
    row = next(log.db["compactions"].rows)
    assert line == (
        f"Compacted {row['tokens_before']:,} -> {row['tokens_after']:,} tokens "
        f"(4 exchanges summarized, 2 kept) with chatty. New conversation: {log.newest()['id']}. "
        f"Original: llm -c --cid {long_talk}"
    )


def test_the_new_thread_has_a_root_of_its_own_and_one_turn(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [Reply(ANSWER, usage=(900, 45))]

    run("compact", "-c", "-m", "summer")

    thread = log.newest()
    assert thread["forked_from"] == long_talk
    assert log.db.execute("select count(*) from messages where parent_hash is null").fetchone() == (
        2,
    )
    (turn,) = log.db["turns"].rows_where("thread_id = ?", [thread["id"]])
    assert (turn["model"], turn["resolved_model"]) == ("chatty", "summer")
    assert (turn["input_tokens"], turn["output_tokens"]) == (900, 45)
    assert turn["duration_ms"] is not None and turn["datetime_utc"].startswith("20")


def test_llm_logs_shows_the_compaction(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    models.summer.replies = [ANSWER]
    run("compact", "-c", "-m", "summer")
    new = log.newest()["id"]

    listed = json.loads(run("logs", "-c", "--json").stdout)
    found = json.loads(run("logs", "-q", "six places", "--json").stdout)
    by_id = json.loads(run("logs", "--cid", new, "--json").stdout)

    assert listed == found == by_id
    assert listed[0]["conversation_id"] == new
    assert listed[0]["response"] == SUMMARY
    assert listed[0]["prompt"].startswith("Compaction 1: ")
    assert listed[0]["system"] == "You know the tides."
    assert listed[0]["resolved_model"] == "summer"
    assert "Model: **chatty** (resolved: **summer**)" in run("logs", "-c").stdout


def test_no_row_of_the_source_changes(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    before = log.rows()

    run("compact", "-c", "-m", "extractive")

    after = log.rows()
    for table, rows in before.items():
        assert after[table][: len(rows)] == rows


def test_the_source_is_continued_uncompacted(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    source = log.messages(long_talk)
    run("compact", "-c", "-m", "extractive")

    run("--cid", long_talk, "And today?")

    assert models.chatty.sent[-1].messages[:-1] == source


def test_llm_continues_with_the_compacted_conversation(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "-c", "-m", "extractive")
    new = log.newest()["id"]
    chain = log.messages(new)

    result = run("-c", "And today?")

    assert result.exit_code == 0
    sent = models.chatty.sent[-1].messages
    assert sent[:-1] == chain
    assert sent[-1] == llm.user("And today?")
    assert log.newest()["id"] == new


def test_llm_continues_asynchronously(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    run("compact", "-c", "-m", "extractive")
    chain = log.messages()

    result = run("-c", "--async", "And today?")

    assert result.exit_code == 0
    assert models.chatty.sent[-1].messages[:-1] == chain


def test_llm_chat_continues(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    run("compact", "-c", "-m", "extractive")
    chain = log.messages()

    result = run("chat", "-c", input="And today?\nAnd tomorrow?\nquit\n")

    assert result.exit_code == 0
    assert models.chatty.sent[-2].messages[:-1] == chain
    assert models.chatty.sent[-1].messages[: len(chain)] == chain


def test_tools_and_configured_toolboxes_come_back(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    models.chatty.replies = [LONG.format(place="Ribe", n=1)]
    run("-m", "chatty", "-T", "lookup", "-T", 'Toolkit("/srv")', "Where am I?")
    for number in range(4):
        models.chatty.replies = [LONG.format(place="Ribe", n=number)]
        run("-c", f"Once more, for the {number}th time?")
    before = models.chatty.sent[-1].tools

    assert run("compact", "-c", "-m", "extractive").exit_code == 0
    models.chatty.replies = [Reply(calls=[("c1", "Toolkit_whereami", {})]), "There."]
    run("-c", "And now?")

    assert [t.name for t in models.chatty.sent[-1].tools] == [t.name for t in before]
    assert models.chatty.sent[-1].tool_results[0].output == "/srv"


def test_a_second_generation_tools_come_back_too(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    exchanges = [(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(5)]
    talk(exchanges)
    run("compact", "-c", "-m", "extractive")
    for n in range(4):
        models.chatty.replies = [LONG.format(place="Nuuk", n=n)]
        run("-c", f"Question {n}?", "-T", "lookup")
    assert run("compact", "-c", "-m", "extractive").exit_code == 0

    turns = log.db["turns"].rows_where("thread_id = ?", [log.newest()["id"]])
    (row,) = log.db["turn_tools"].rows_where("turn_id = ?", [next(turns)["id"]])
    assert row["tool_id"]


def test_tool_calls_and_results_of_the_tail_are_intact(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    tool_loop = [
        Reply("Looking.", calls=[("a1", "lookup", {"key": "x"}), ("a2", "lookup", {"key": "y"})]),
        "Both found.",
    ]
    source = talk(
        [(f"Question {n}?", LONG.format(place="Ribe", n=n)) for n in range(4)]
        + [("Look up x and y", tool_loop), ("Thanks", "You're welcome.")]
    )

    run("compact", "-c", "-m", "extractive")

    chain = log.messages()
    assert chain[-6:] == log.messages(source)[-6:]
    assert [p.output for p in chain[-4].parts] == ["value of x", "value of y"]


def test_fragments_stay_stored_by_reference(talk: Talk, models: Plugin, log: Log, run: Run) -> None:
    novel = "It was the best of tides, it was the worst of tides. " * 200
    novel = novel.strip()  # as llm stores a system prompt
    log.db  # noqa: B018  (creates the directory)
    (log.path.parent / "novel.txt").write_text(novel)
    models.chatty.replies = ["A system prompt and a novel."]
    run("-m", "chatty", "--sf", str(log.path.parent / "novel.txt"), "What is this?")
    for n in range(4):
        models.chatty.replies = [LONG.format(place="Ribe", n=n)]
        run("-c", f"Question {n}?")
    models.chatty.replies = ["The same novel."]
    run("-c", "-f", str(log.path.parent / "novel.txt"), "And this?")

    assert run("compact", "-c", "-m", "extractive").exit_code == 0

    chain = log.messages()
    assert chain[0].parts[0].text == novel
    assert novel in chain[-2].parts[0].text
    stored = log.db.execute("select coalesce(sum(length(text)), 0) from parts").fetchone()[0]
    payloads = log.db.execute("select sum(length(payload)) from parts").fetchone()[0]
    assert stored + payloads < len(novel)


@pytest.mark.parametrize("space", ["", "\n", "  \n\n"])
def test_a_system_fragment_is_not_stored_again_by_any_generation(
    space: str, models: Plugin, log: Log, run: Run
) -> None:
    log.db  # noqa: B018  (creates the directory)
    path = log.path.parent / "rules.txt"
    path.write_text(space + "Never dig on a Sunday. " * 200 + "Amen." + space)

    def talk_on() -> None:
        for n in range(4):
            models.chatty.replies = [LONG.format(place="Ribe", n=n)]
            run("-c", f"Question {n}?")

    def copies() -> list[str]:
        return [
            table
            for table, column in [("parts", "text"), ("parts", "payload"), ("fragments", "content")]
            for row in log.db[table].rows
            if "Never dig on a Sunday. " * 9 in (row[column] or "")
        ]

    run("-m", "chatty", "--sf", str(path), "What is this?")
    talk_on()
    assert run("compact", "-c", "-m", "extractive").exit_code == 0
    after_first = copies()
    talk_on()
    assert run("compact", "-c", "-m", "extractive").exit_code == 0

    assert copies() == after_first
    # With space around it, llm stores it by its text, and we without the space.
    assert sorted(after_first) == ["fragments", *(["fragments", "parts"] if space else [])]
    assert {row["source"] for row in log.db["fragments"].rows} == {str(path)}


def test_attachments_of_the_tail_are_kept(talk: Talk, models: Plugin, log: Log, run: Run) -> None:
    for n in range(4):
        models.chatty.replies = [LONG.format(place="Ribe", n=n)]
        run(*(["-c"] if n else ["-m", "chatty"]), f"Question {n}?")
    picture = log.path.parent / "chart.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n tide chart")
    run("-c", "What does it show?", "--at", str(picture), "image/png")

    assert run("compact", "-c", "-m", "extractive").exit_code == 0

    (attachment,) = [
        part.attachment for m in log.messages() for part in m.parts if hasattr(part, "attachment")
    ]
    assert attachment.path == str(picture.resolve())


def test_focus_reaches_the_summarizer_outside_of_the_transcript(
    long_talk: str, models: Plugin, run: Run
) -> None:
    models.summer.replies = [ANSWER, ANSWER]

    run("compact", "-c", "-m", "summer", "keep", "the $schema {decisions}")
    words = models.summer.texts_sent()
    run("compact", "--cid", long_talk, "--again", "-m", "summer", "--focus", "run all day")
    option = models.summer.texts_sent()

    assert "look after this above all: keep the $schema {decisions}" in words
    assert "look after this above all: run all day" in option
    assert words.index("keep the $schema") > words.index(" end\n")


def test_options_and_key_reach_the_summarizer(long_talk: str, models: Plugin, run: Run) -> None:
    models.summer.replies = [ANSWER, ANSWER]

    run("compact", "-c", "-m", "sum", "-o", "max_tokens", "300")
    run("compact", "--cid", long_talk, "--again", "-m", "keyed", "--key", "sk-1")

    assert models.summer.sent[0].options.max_tokens == 300
    assert models.summer.keys == [None, "sk-1"]


def test_the_summarizer_can_be_set_in_the_environment(
    long_talk: str, models: Plugin, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_COMPACT_MODEL", "summer")
    models.summer.replies = [ANSWER]

    assert run("compact", "-c").stdout == SUMMARY + "\n"


def test_an_async_model_can_summarize(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    models.summer.replies = [ANSWER]

    result = run("compact", "-c", "-m", "async-only")

    assert result.stdout == SUMMARY + "\n"
    assert next(log.db["turns"].rows_where(order_by="id desc"))["resolved_model"] == "async-only"


def test_reasoning_in_front_of_the_summary_is_neither_shown_nor_stored(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    models.summer.replies = [f"<think>The user wants the tides.</think>\n\n{ANSWER}"]

    result = run("compact", "-c", "-m", "summer")

    assert result.stdout == SUMMARY + "\n"
    assert log.messages()[2].parts[0].text == SUMMARY


def test_json_holds_the_compaction(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    models.summer.replies = [Reply(ANSWER, usage=(900, 45))]

    result = run("compact", "-c", "-m", "sum", "--json")

    data = json.loads(result.stdout)
    thread = log.newest()
    expected: dict[str, Any] = {
        "id": thread["id"],
        "source_id": long_talk,
        "generation": 1,
        "model": "chatty",
        "summarizer": "summer",
        "messages_summarized": 8,
        "messages_kept": 4,
        "exchanges_summarized": 4,
        "exchanges_kept": 2,
        "summary": SUMMARY,
        "usage": {"input": 900, "output": 45, "calls": 1},
    }
    assert {key: data[key] for key in expected} == expected
    assert data["tokens_after"] < data["tokens_before"]
    assert 0 < data["summary_tokens"] < data["tokens_after"]
    assert data["duration_ms"] >= 0
    assert (data["values_found"], data["values_lost"], data["lost"]) == (0, 0, [])


def test_json_tells_which_values_were_lost(talk: Talk, models: Plugin, run: Run) -> None:
    names = [f"the_name_of_place_{n}" for n in range(10, 50)]
    talk([(f"What of {name}?", f"{name} is fine. " + LONG) for name in names])
    models.summer.replies = ["## Done\nThe places were looked at, and all of them are fine."]

    data = json.loads(run("compact", "-c", "-m", "summer", "--max-summary", "150", "--json").stdout)

    lost = [item["value"] for item in data["lost"]]
    assert (data["values_found"], data["values_lost"]) == (38, len(lost))
    assert {item["kind"] for item in data["lost"]} == {"name"}
    assert lost == [name for name in reversed(names[:38]) if name not in data["summary"]]
    assert 0 < len(lost) < 38


def test_lost_values_are_told_to_people(talk: Talk, models: Plugin, run: Run) -> None:
    names = [f"the_name_of_place_{n}" for n in range(10, 50)]
    talk([(f"What of {name}?", f"{name} is fine. " + LONG) for name in names])
    models.summer.replies = ["## Done\nThe places were looked at, and all of them are fine."]

    told = run("compact", "-c", "-m", "summer", "--max-summary", "150").stderr.splitlines()[-1]

    lost = run("compact", "show", "--lost").stdout.splitlines()
    assert told == f"Not carried over: {len(lost)} of 38 values; llm compact show --lost"
    assert lost[0].startswith("name: the_name_of_place_")


def test_quiet_says_nothing(long_talk: str, models: Plugin, run: Run) -> None:
    models.summer.replies = [ANSWER]

    result = run("compact", "-c", "-m", "summer", "--quiet")

    assert (result.exit_code, result.output) == (0, "")


def test_usage_is_told_on_stderr(long_talk: str, models: Plugin, run: Run) -> None:
    models.summer.replies = [Reply(ANSWER, usage=(9_100, 45))]

    result = run("compact", "-c", "-m", "summer", "-u")

    assert "Token usage: 9,100 input, 45 output" in result.stderr


def test_dry_run_calls_and_writes_nothing(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    before = log.rows()

    told = run("compact", "-c", "--dry-run")
    data = json.loads(run("compact", "-c", "--dry-run", "--json").stdout)

    assert told.exit_code == 0
    assert "8 messages, 4 exchanges" in told.stdout
    assert "4 messages, 2 exchanges" in told.stdout
    assert (data["messages_summarized"], data["messages_kept"]) == (8, 4)
    assert models.chatty.sent == []
    assert log.rows() == before


@pytest.mark.parametrize("usages", [[], [(900, 60), (1_100, 80), (1_400, 90)]])
def test_what_a_dry_run_tells_adds_up(
    usages: list[tuple[int, int]], talk: Talk, models: Plugin, run: Run
) -> None:
    replies = [
        [Reply(LONG.format(place="Ribe", n=n), usage=usages[n] if usages else (None, None))]
        for n in range(3)
    ]
    talk([(f"Question {n}?", reply) for n, reply in enumerate(replies)], system="Be brief.")

    data = json.loads(run("compact", "-c", "--dry-run", "--json").stdout)
    shown = [line.split() for line in run("compact", "-c", "--dry-run").stdout.splitlines()]

    parts = [data[f"tokens_{part}"] for part in ("summarized", "kept", "system")]
    assert data["tokens_before"] == sum(parts)
    assert min(parts) > 0
    rows = {row[0]: row for row in shown if "tokens" in row}
    assert list(rows) == ["now:", "summarized:", "kept:", "system:"]
    tokens, messages = (
        [int(row[place].strip("(),").replace(",", "")) for row in rows.values()] for place in (1, 3)
    )
    assert (tokens[0], messages[0]) == (sum(tokens[1:]), sum(messages[1:]))


def test_run_is_the_default_command(long_talk: str, models: Plugin, run: Run) -> None:
    models.summer.replies = [ANSWER, ANSWER]

    named = run("compact", "run", "-m", "summer", "--dry-run")
    bare = run("compact", "-m", "summer", "--dry-run")

    assert named.stdout == bare.stdout != ""


def test_the_same_point_is_compacted_once(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    run("compact", "-c", "-m", "extractive")
    first = log.newest()["id"]

    refused = run("compact", "--cid", long_talk, "-m", "summer")
    again = run("compact", "--cid", long_talk, "-m", "extractive", "--again")

    assert refused.exit_code == 1
    assert f"Already compacted as {first}" in refused.stderr
    assert models.summer.sent == []
    assert again.exit_code == 0
    assert log.newest()["forked_from"] == long_talk


def test_where_llm_would_pick_another_conversation_the_way_is_told(
    long_talk: str, models: Plugin, log: Log, run: Run
) -> None:
    log.db["threads"].update(long_talk, {"name": "x"})
    log.db["threads"].insert({"id": "zzz-imported", "name": "not a ULID"})

    result = run("compact", "--cid", long_talk, "-m", "extractive")

    new = next(log.db["compactions"].rows)["conversation_id"]
    assert f"Go on: llm -c --cid {new}" in result.stderr


def test_another_database(long_talk: str, models: Plugin, log: Log, run: Run) -> None:
    other = log.path.rename(log.path.with_name("other.db"))

    assert run("compact", "-c", "-m", "extractive", "-d", str(other)).exit_code == 0
    assert not log.path.exists()
    assert Log(other).newest()["forked_from"] == long_talk


def test_the_python_function_does_the_same(long_talk: str, models: Plugin, log: Log) -> None:
    import llm_compact

    models.summer.replies = [ANSWER]

    compaction = llm_compact.compact(model="summer", keep="4m")

    assert compaction.summary == SUMMARY
    assert compaction.messages_kept == 4
    assert log.newest()["id"] == compaction.id
    with pytest.raises(llm_compact.CompactionError, match="No conversation found"):
        llm_compact.compact("nope")


def test_the_request_is_in_the_language_of_the_conversation(
    talk: Talk, models: Plugin, log: Log, run: Run
) -> None:
    answer = "南京的高潮时间是早上六点十五分，水位一米五。请注意安全，不要在堤坝上走。" * 4
    talk([(f"第{n}天的潮汐时间是什么？", answer) for n in range(5)])

    result = run("compact", "-c", "-m", "extractive")

    assert result.exit_code == 0
    (request,) = log.messages()[0].parts
    assert isinstance(request, TextPart) and request.text.startswith("第 1 次压缩")
    assert "## 要点与决定" in result.stdout


def test_reasoning_is_cut_off_the_stream_without_hurting_the_text(
    long_talk: str, models: Plugin, run: Run, terminal: None
) -> None:
    class Chunks(Reply):
        def events(self) -> Any:
            for chunk in (
                "<thi",
                "nk>hm</thi",
                "nk>\n\n## Goal\n",
                "The tides ",
                "of six\n\n",
                "places",
            ):
                yield StreamEvent(type="text", chunk=chunk)

    models.summer.replies = [Chunks()]

    result = run("compact", "-c", "-m", "summer")

    assert result.stdout == recorded("## Goal\nThe tides of six\n\nplaces\n")


def test_a_reader_that_leaves_does_not_stop_a_compaction(long_talk: str, log: Log) -> None:
    command = [sys.executable, "-m", "llm", "compact", "-c", "-m", "extractive"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        told = process.stderr.read().decode()

    assert process.returncode == 0
    assert told.startswith("Compacted ") and len(told.splitlines()) == 1
    assert log.newest()["forked_from"] == long_talk


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
def test_an_output_that_fails_is_told_and_the_compaction_stands(long_talk: str, log: Log) -> None:
    command = [sys.executable, "-m", "llm", "compact", "-c", "-m", "extractive", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)

    assert "No space left on device" in done.stderr and "Compacted " in done.stderr
    assert done.returncode == 0
    assert log.newest()["forked_from"] == long_talk


def test_the_way_on_names_another_database(long_talk: str, log: Log, run: Run) -> None:
    other = log.path.rename(log.path.with_name("my log.db"))

    result = run("compact", "-c", "-m", "extractive", "-d", str(other))

    assert f"Go on: llm -c -d '{other}'. " in result.stderr
    assert f"Original: llm -c -d '{other}' --cid {long_talk}" in result.stderr
