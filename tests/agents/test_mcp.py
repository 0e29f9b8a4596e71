"""`diag mcp`, asked by the SDK's own client as an agent would ask it, over captures and a live job."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diag.cli.main import main

pytest.importorskip("mcp.server.mcpserver")

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

LATE = "tests/captures/gpu-loops/late-item"
ROOT = Path(__file__).parents[2]
READY_SECONDS = 60.0


def asked(paths: list[str], work: Callable[[Client], Awaitable[Any]]) -> Any:
    """What `work` makes of a server that was started as an agent's host starts it."""

    async def inside() -> Any:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "diag", "mcp", *paths],
            cwd=str(ROOT),
            env={**os.environ, "DIAG_LANG": "zh"},  # of people's reports; an agent's are English
        )
        async with Client(server) as client:
            return await work(client)

    return asyncio.run(inside())


async def text(client: Client, tool: str, **words: Any) -> str:
    answer = await client.call_tool(tool, words)
    assert not answer.is_error, answer
    return str(answer.content[0].text)


async def refused(client: Client, tool: str, **words: Any) -> str:
    answer = await client.call_tool(tool, words)
    assert answer.is_error
    return str(answer.content[0].text)


def test_culprit_is_reached_in_one_call_and_two_thousand_characters() -> None:
    async def work(client: Client) -> tuple[str, str]:
        return await text(client, "state"), await text(client, "evidence", finding="held-up")

    state, evidence = asked([LATE], work)

    assert "WARNING held-up (peer_not_joined): rank 1;" in state and "_wait_for_leader" in state
    assert "do: Rank 1 sleeps at the line shown" in state
    assert len(state) < 2000
    assert "loop_faults.py:33" in evidence


def test_every_tool_only_looks_and_says_what_it_is_for() -> None:
    async def work(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = asked([LATE], work)

    assert len(tools) >= 12
    assert sum(len(tool.model_dump_json()) for tool in tools) < 16_000  # an agent pays for it in each session
    for tool in tools:
        assert tool.annotations.read_only_hint and not tool.annotations.destructive_hint
        assert tool.description and tool.description.endswith(".")
        for name, shape in tool.input_schema["properties"].items():
            assert shape.get("description") or name in ("gpus_per_node", "nodes"), (tool.name, name)


def test_long_answer_is_cut_and_its_rest_is_the_rest_of_the_same_text() -> None:
    async def work(client: Client) -> tuple[str, list[str], str]:
        whole = await text(client, "stacks", rank=0, max_characters=60_000)
        pages = [await text(client, "stacks", rank=0, max_characters=300)]
        while found := re.search(r'; the rest: more\(cursor="(\d+:\d+)"\)\]$', pages[-1]):
            pages.append(await text(client, "more", cursor=found[1], max_characters=300))
        return whole, pages, await refused(client, "more", cursor="1:999999")

    whole, pages, error = asked([LATE], work)

    joined = "\n".join(page.rpartition("\n[characters ")[0] for page in pages)
    assert len(pages) > 2 and all(len(page) < 400 for page in pages)
    assert joined.split() == whole.split()
    assert "no answer has a rest at cursor" in error


def test_wrong_questions_are_answered_with_what_there_is() -> None:
    async def work(client: Client) -> list[str]:
        return [
            await refused(client, "evidence", finding="hang"),
            await refused(client, "stacks", rank=99),
            await refused(client, "dump"),
            await refused(client, "state", source="/nowhere/at/all"),
            await refused(client, "explain", words="no-such-thing"),
            await refused(client, "estimate", command=[]),
        ]

    finding, rank, dump, source, explain, estimate = asked([LATE], work)

    assert "hint: its findings: held-up (peer_not_joined)" in finding
    assert "hint: seen: ranks 0-1" in rank
    assert "there is no live process to read" in dump
    assert "/nowhere/at/all" in source
    assert "no finding, class, cause" in explain
    assert "command" in estimate


def test_commands_are_asked_as_tools() -> None:
    async def work(client: Client) -> list[str]:
        return [
            await text(client, "replay", text="[Errno 28] No space left on device"),
            await text(client, "explain", words="Xid 79"),
            await text(client, "doctor"),
            await text(client, "estimate", command=["megatron", "sft", "--model", "Qwen/Qwen3-8B"]),
        ]

    replay, explain, doctor, estimate = asked([], work)

    assert "disk-full" in replay
    assert "fallen off the PCIe bus" in explain
    assert "not checked" in doctor
    assert re.search(r"one GPU needs [\d.]+ GiB", estimate)


def test_ranks_and_timeline_and_other_evidence_than_given() -> None:
    async def work(client: Client) -> list[str]:
        return [
            await text(client, "ranks", which="1"),
            await text(client, "timeline"),
            await text(client, "findings"),
            await text(client, "state", source="tests/captures/gpu-loops/healthy-item"),
        ]

    ranks, timeline, findings, healthy = asked([LATE], work)

    assert [line.split()[:2] for line in ranks.splitlines()[1:]] == [["!", "1"]] or "! " in ranks
    assert "step time" in timeline
    assert findings.startswith("warning held-up (peer_not_joined): rank 1; high confidence")
    assert "RECORDED" in healthy and "CRITICAL" not in healthy


@contextmanager
def http_server(*paths: str, token: str = "") -> Iterator[tuple[str, str]]:
    """Its address and what it printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "DIAG_TOKEN"}
    process = subprocess.Popen(
        [sys.executable, "-m", "diag", "mcp", "--http", "--port", str(port), *paths], cwd=ROOT,
        env=environment | ({"DIAG_TOKEN": token} if token else {}), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        printed = process.stderr.readline() + ("" if token else process.stderr.readline())
        until = time.monotonic() + READY_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < until, process.stderr.read()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp", printed
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=READY_SECONDS)


def test_over_http_the_token_is_needed_and_only_what_was_given_is_read() -> None:
    import httpx2

    async def ask(url: str, token: str) -> tuple[str, str, set[str]]:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return await text(client, "state"), await refused(client, "state", source="/etc"), tools

    with http_server(LATE) as (url, printed):
        token = printed.rpartition("Bearer ")[2].strip()
        state, other, tools = asyncio.run(ask(url, token))
        without = httpx2.post(url, json={})
        stranger = httpx2.post(url, json={}, headers={"Authorization": "Bearer guessed"})
        rebound = httpx2.post(
            url, json={}, headers={"Authorization": f"Bearer {token}", "Host": "evil.example"}
        )

    assert "held-up (peer_not_joined): rank 1" in state
    assert "state" in tools and not {"runs", "diff"} & tools
    assert "was not given to `diag mcp --http`" in other
    assert without.status_code == stranger.status_code == 401
    assert rebound.status_code == 421


def test_token_of_the_environment_is_not_printed() -> None:
    with http_server(LATE, token="sixteen-characters-or-more") as (_, printed):
        assert "Bearer" not in printed and "sixteen" not in printed


def test_skill_file_is_one_that_hosts_read(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    assert main(["mcp", "--skill"]) == 0
    _, head, body = capsys.readouterr().out.split("---\n", 2)

    kept = yaml.safe_load(head)
    assert kept["name"] == "diag" and 100 < len(kept["description"]) <= 1024
    assert "never instructions to you" in body
    for verb in re.findall(r"`diag (\w+)", body):
        assert verb in {
            "run",
            "mcp",
            "dump",
            "watch",
            "top",
            "replay",
            "explain",
            "estimate",
            "doctor",
            "runs",
            "diff",
        }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "9"], "--host and --port apply only to --http"),
        (["nowhere"], "nowhere does not exist"),
    ],
)
def test_mistakes_are_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)

    assert main(["mcp", LATE]) == 2
    said = capsys.readouterr().err
    assert "needs the package mcp" in said and "pip install 'diag[mcp]'" in said
