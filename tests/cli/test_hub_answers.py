"""Whatever is at the address of a hub, `diag dump`, `top` and `flame` say it in a sentence with a hint, and
end with 1."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.settings import load
from diag.text.errors import DiagError

COMMANDS = [["dump", "--seconds", "1"], ["top", "--once"], ["flame", "0", "--seconds", "1", "-o", "-"]]
RAW = re.compile(r"Errno|Expecting|char \d|object at|Exception|Traceback|0x[0-9a-f]{6}|_ssl\.c|None")


def http(status: str, body: str = "", *more: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", "Connection: close", *more]
    return ("\r\n".join([*head, "", ""]) + body).encode()


def detail(text: str, hint: str = "") -> str:
    return json.dumps({"detail": text, **({"hint": hint} if hint else {})})


class Stranger:
    """Sends the same bytes to whoever asks."""

    def __init__(self, sent: bytes, wrap: Callable[[socket.socket], socket.socket] = lambda one: one) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sent, self._wrap = sent, wrap
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._wrap(one) as wrapped:
                    wrapped.settimeout(10)
                    wrapped.recv(65536)
                    wrapped.sendall(self._sent)
            except OSError:
                one.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def stranger() -> Iterator[Callable[..., int]]:
    made: list[Stranger] = []

    def at(sent: bytes, **how: Callable[[socket.socket], socket.socket]) -> int:
        made.append(Stranger(sent, **how))
        return int(made[-1].port)

    yield at
    for each in made:
        each.close()


def said(
    command: list[str], url: str, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, str]:
    code = main([*command, "--endpoint", url, *more])
    out, err = capsys.readouterr()
    assert out == ""
    err = "".join(
        line for line in err.splitlines(keepends=True) if not line.startswith("diag: recording rank")
    )
    error, _, hint = err.rstrip("\n").partition("\n\nhint: ")
    assert error.startswith("error: ") and hint, err
    assert not RAW.search(err), err
    return code, error.removeprefix("error: "), hint


PAGE = "<!doctype html><html><body>It works</body></html>"
ANSWERS = [
    (http("200 OK", PAGE), "not diag"), (http("200 OK", ""), "not diag"), (http("200 OK", "[1, 2]"), "not diag"),
    (http("200 OK", '{"a": '), "not diag"), (http("204 No Content"), "not diag"),
    (http("301 Moved Permanently", PAGE, "Location: https://elsewhere/"), "answers 301 Moved Permanently, and is not diag"),
    (http("400 Bad Request", "The plain HTTP request was sent to HTTPS port"), "answers 400 Bad Request, and is not diag"),
    (http("401 Unauthorized", PAGE), "it needs the run's token"), (http("403 Forbidden", PAGE), "answers 403 Forbidden"),
    (http("403 Forbidden", detail("native frames are for the user of this run", "ask as that user")), "for the user of this run"),
    (http("404 Not Found", PAGE), "answers 404 Not Found"), (http("404 Not Found", detail("Not Found")), "not diag"),
    (http("409 Conflict", detail("this is recorded evidence: no process to look at", "see the page")), "recorded evidence"),
    (http("413 Payload Too Large", PAGE), "answers 413"), (http("429 Too Many Requests", PAGE), "answers 429 Too Many Requests"),
    (http("500 Internal Server Error", detail("diag failed here")), "diag failed here"), (http("500 Oops", PAGE), "answers 500"),
    (http("501 Unsupported method ('POST')", PAGE), "answers 501 Unsupported method"), (http("502 Bad Gateway"), "answers 502"),
    (http("503 Service Unavailable", detail("diag's engine has been busy for 5 s")), "has been busy"),
    (http("504 Gateway Timeout", detail("the dump did not end in 5 s")), "did not end"),
    (http("405 Method Not Allowed", detail("Method Not Allowed")), "answers 405"),
    (b"", "closed the connection without an answer"), (b"SSH-2.0-OpenSSH_9.6\r\n", "not diag"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "was cut off"), (b"\x15\x03\x01\x00\x02\x02\x50", "speaks TLS"),
    (http("500 \x1b[31mred\x1b[0m", detail("\x1b[2J\u202egone")), "gone"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("sent, told", ANSWERS, ids=[str(number) for number in range(len(ANSWERS))])
def test_whatever_answers_is_told_in_a_sentence(
    command: list[str],
    sent: bytes,
    told: str,
    stranger: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, error, hint = said(command, f"http://127.0.0.1:{stranger(sent)}", capsys)

    assert code == 1 and told in error, error
    assert "\x1b" not in error + hint and "\u202e" not in error + hint


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_nobody_there_wrong_names_and_silence_are_told(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diag.cli.dump._GRACE_SECONDS", 0.1)
    monkeypatch.setattr("diag.cli.flame._GRACE_SECONDS", 0.1)
    monkeypatch.setattr("diag.cli.tui.live._STACKS_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        _, error, hint = said(command, f"http://127.0.0.1:{port}", capsys)
        assert "does not answer within" in error and "overloaded" in hint
    _, error, hint = said(command, f"http://127.0.0.1:{port}", capsys)
    assert error.endswith("connection refused")
    _, error, hint = said(command, f"http://no-such-host.invalid:{port}", capsys)
    assert "the host name does not resolve" in error


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    "url", ["foo", "ftp://h:1", "http://", "http://h:abc", "http://h:99999", "127.0.0.1:9095", "http://h:"]
)
def test_what_is_no_address_is_an_error_of_usage(
    command: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error, hint = said(command, url, capsys)

    assert code == 2 and "is not a hub address" in error and "http://127.0.0.1:9095" in hint


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_tls_and_none_are_told_apart(
    command: list[str], stranger: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", str(key), "-out",
                    str(certificate), "-days", "2"], check=True, capture_output=True)  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    port = stranger(http("200 OK", PAGE), wrap=lambda one: context.wrap_socket(one, server_side=True))

    _, error, hint = said(command, f"https://127.0.0.1:{port}", capsys)
    assert "is not trusted" in error and "--tls-ca" in hint
    _, error, _ = said(command, f"https://127.0.0.1:{port}", capsys, "--tls-ca", str(certificate))
    assert "not diag" in error  # trusted, and another server
    _, error, hint = said(command, f"http://127.0.0.1:{port}", capsys)
    assert "TLS" in error + hint and "https://" in hint
    _, error, hint = said(command, f"https://127.0.0.1:{stranger(http('200 OK', PAGE))}", capsys)
    assert "does not speak TLS" in error and "http://" in hint


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_token_that_is_not_the_runs_is_told(
    command: list[str], stranger: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    token.chmod(0o600)
    port = stranger(http("401 Unauthorized", detail("this needs the run's token")))

    _, error, hint = said(command, f"http://127.0.0.1:{port}", capsys, "--token-file", str(token))

    assert (
        "the token is not that of this run" in error and "--token-file" in hint and "tttt" not in error + hint
    )


@pytest.mark.parametrize(
    "words", [["replay"], ["replay", "--json"], ["top", "--once"], ["flame", "0", "-o", "-", "--from"]]
)
@pytest.mark.parametrize("url", ["https://host/logs/train.log", "s3://bucket/train.log"])
def test_address_in_place_of_a_file_is_not_downloaded(
    words: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, url]) == 2

    out, err = capsys.readouterr()
    assert (
        out == ""
        and f"error: {url} is an address, and diag downloads nothing" in err
        and f"curl -sSL '{url}' | diag" in err
    )


def test_settings_that_cannot_be_used_name_the_page_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_PORT", "many")
    with pytest.raises(DiagError) as error:
        load()

    page = re.search(r"docs/\S+\.md", error.value.hint)
    assert page and "`port`" in (Path(__file__).parents[2] / page[0]).read_text()
