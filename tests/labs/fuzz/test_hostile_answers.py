"""What a server may answer to hurt: a person's terminal, files, the memory of who asks."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.cli.main import main
from diag.text.errors import DiagError
from tests.labs.fuzz.targets.base import CONTROLS


@contextlib.contextmanager
def lying(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server's address, and the headers that it was asked with."""
    asked: list[dict[str, str]] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response_only(status, "\x1b[2Jreason")
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *words: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


HOSTILE = "\x1b[2J\x1b]52;c;aGk=\x07\x1b]8;;http://evil\x07\x9b31m\u202e"


REPORT: dict[str, Any] = {"job": {"state": "hung"}, "findings": [], "not_checked": []}


def test_dump_of_a_server_paints_and_does_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = f"\x1b[1;31mCRITICAL\x1b[0m hang\n\n{HOSTILE}rank 3"
    with lying(json.dumps({"report": REPORT, "screen": screen, "found": True}).encode()) as (url, _):
        assert main(["dump", "--endpoint", url]) == 10
        plain = capsys.readouterr().out
        monkeypatch.setattr("diag.cli.dump.wanted", lambda descriptor: True)
        assert main(["dump", "--endpoint", url]) == 10
        painted = capsys.readouterr().out

    assert not CONTROLS & set(plain) and "rank 3" in plain
    assert "\x1b[1;31mCRITICAL\x1b[0m hang\n\n" in painted
    assert not CONTROLS & set(re.sub(r"\x1b\[[0-9;]*m", "", painted))


@pytest.mark.parametrize(
    "document",
    [
        {"report": {}},
        {"report": []},
        {"report": 5, "found": False},
        {"report": REPORT, "screen": 5, "found": 1},
        {"report": {"findings": [5]}},
        {"report": {**REPORT, "job": None}},
        {"report": {**REPORT, "findings": [{"ranks": 5}]}, "text": "x"},
        {"report": None, "found": True},
    ],
    ids=repr,
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_dump_that_is_none_is_an_error_in_a_line(
    document: Any, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with lying(json.dumps(document).encode()) as (url, _):
        code = main(["dump", "--endpoint", url, *more])

    said = capsys.readouterr()
    assert code in (0, 1, 10)
    assert code != 1 or "did not return a diag dump" in said.err


@pytest.mark.parametrize("named", ["/etc/passwd", "/dev/zero", "secret", "packed.gz", "x\x00", ["a"], 7])
def test_file_that_a_server_names_is_copied_only_if_it_is_a_bundle(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("hunter2")
    Path("packed.gz").write_bytes(gzip.compress(b"hunter2"))
    with lying(json.dumps({"report": REPORT, "screen": "x", "found": False, "bundle": named}).encode()) as (
        url,
        _,
    ):
        assert main(["dump", "--endpoint", url, "-o", "out"]) == 1

    assert not Path("out").exists()


@pytest.mark.parametrize("verb", [["dump"], ["top", "--once"], ["top", "--json"], ["flame", "0"]])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_error_of_a_server_moves_no_cursor(
    verb: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"detail": HOSTILE, "hint": HOSTILE, "schema": HOSTILE}).encode()
    with lying(body, status) as (url, _), contextlib.suppress(SystemExit):
        main([*verb, *(["-o", "-"] if verb[0] == "flame" else []), "--endpoint", url])

    said = capsys.readouterr()
    assert not CONTROLS & set(said.err)


def test_token_does_not_follow_a_redirect(capsys: pytest.CaptureFixture[str]) -> None:
    with lying(b"<svg/>") as (elsewhere, asked_there):
        moved = {"Location": f"{elsewhere}/flame"}
        for verb in (["flame", "all", "-o", "-"], ["dump"], ["top", "--once"]):
            with lying(b"", 302, moved) as (url, asked_here):
                assert main([*verb, "--endpoint", url, "--token", "s3cret"]) in (1, 2)
            assert asked_here[0]["authorization"] == "Bearer s3cret"

    assert asked_there == []


def test_flame_graph_of_any_length_is_not_taken_into_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from diag.cli import flame

    monkeypatch.setattr("diag.cli.client.http._LONGEST", 1 << 20)
    args = argparse.Namespace(
        endpoint="",
        token=None,
        tls_ca=None,
        run_dir=None,
        format="svg",
        children=False,
        seconds=1.0,
        rate=5,
        native=False,
        token_file=None,
    )
    with lying(b"x" * (2 << 20)) as (url, _):
        args.endpoint = url
        with pytest.raises(DiagError, match="more than 1 MiB"):
            flame._live(args, None)
