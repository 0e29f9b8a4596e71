"""Hubs, and what is none, that answer late, wrong or never: a dump and the end of a run do not wait for them."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.cluster import member as member_module
from diag.agent.cluster.jobdump import Gathering, job_engine
from diag.agent.cluster.member import Member
from diag.agent.cluster.post import Failed, Sender, try_connection
from diag.launch.launchers.nodes import JobNodes
from tests.cluster_unit.hubs import TOKEN, OneNode, judged, until


class _Nonsense(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.strip("/").partition("?")[0]
        body = {"text": b"<html>not a hub</html>", "dump": b'{"ranks": []}', "gzip": b"\x1f\x8bbroken"}[name]
        self.send_response(200)
        if body.startswith(b"\x1f"):
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def nonsense() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Nonsense) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(5.0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_dump_does_not_wait_for_a_node_that_hangs_and_names_each_that_fails(
    make: Callable[..., list[OneNode]],
) -> None:
    nodes = make(2)
    until(lambda: judged(nodes, 0)() and len(nodes[0].member.roster) == 2, *nodes)
    entry = {"host": "h", "node_rank": 5, "ranks": []}
    with nonsense() as port, socket.create_server(("127.0.0.1", 0)) as silent:
        urls = {
            "good": f"http://127.0.0.1:{nodes[1].port}", "hangs": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "refuses": f"http://127.0.0.1:{free_port()}", "nowhere": "", "no name": "http://no-such-host.invalid:9095",
            "html": f"http://127.0.0.1:{port}",
        }  # fmt: skip
        began = time.monotonic()
        gathering = Gathering(
            Sender(TOKEN), [{**entry, "run_id": name, "url": url} for name, url in urls.items()], began + 4.0
        )
        gathering.start()
        answers = {answer.entry["run_id"]: answer for answer in gathering.wait()}
        seconds = time.monotonic() - began

    assert seconds < 5.0
    assert (
        answers["good"].document is not None
        and answers["good"].document["digest"]["node"]["host"] == "node-1"
    )
    assert {name for name, answer in answers.items() if answer.document is None} == {*urls} - {"good"}
    assert "in time" in answers["hangs"].reason
    assert "refused the connection" in answers["refuses"].reason
    assert "the address of its hub is unknown" in answers["nowhere"].reason
    assert "has a name that cannot be resolved" in answers["no name"].reason
    assert "did not answer as a diag hub" in answers["html"].reason
    document = answers["good"].document
    assert document is not None
    engine = job_engine([document["digest"]], time.time())
    assert [*engine.job.ranks] == [1]


@pytest.mark.parametrize("what", ["text", "gzip"])
def test_answer_of_something_else_is_no_hub(what: str) -> None:
    with nonsense() as port, pytest.raises(Failed) as failed:
        Sender(TOKEN).get(f"http://127.0.0.1:{port}", f"/{what}", 5.0)

    assert failed.value.kind == "no_hub"


def test_connection_is_tried_with_a_word_for_what_came_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert try_connection(f"http://127.0.0.1:{listener.getsockname()[1]}", 2.0)[0] == "connected"
    assert try_connection(f"http://127.0.0.1:{free_port()}", 2.0)[0] == "refused"
    assert try_connection("http://no-such-host.invalid:9", 2.0)[0] == "unresolved"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", files[1], "-out", files[0], "-days", "2", "-subj",
         "/CN=diag of this job"], check=True, capture_output=True,
    )  # fmt: skip
    return files


def test_hubs_join_over_tls_by_one_certificate_that_names_none_of_them(
    make: Callable[..., list[OneNode]], certificate: tuple[Path, Path]
) -> None:
    nodes = make(2, certificate, certificate[0])

    until(judged(nodes, 0), *nodes)

    url = f"https://127.0.0.1:{nodes[0].port}"
    assert nodes[1].member._target == url
    with pytest.raises(Failed, match="TLS"):  # one who does not trust it
        Sender(TOKEN).get(url, "/nodes", 5.0)
    with pytest.raises(Failed):  # and one who speaks in the clear
        Sender(TOKEN).get(f"http://127.0.0.1:{nodes[0].port}", "/nodes", 5.0)
    assert len(Sender(TOKEN, certificate[0]).get(url, "/nodes", 5.0)["nodes"]) == 2


def reporting_to(silent_port: tuple[int, threading.Event], tmp_path: Path) -> tuple[OneNode, Member]:
    """A node whose job hub took the connection and answers no more than that."""
    port, taken = silent_port
    node = OneNode(1, tmp_path).start()
    node.hub.cluster.member = member = Member(
        node.hub, JobNodes(2, 1, "127.0.0.1", 29500), node.port, Sender(TOKEN), node.hub.cluster.collector, node.said.append,
        peer_port=port,
    )  # fmt: skip
    member.start()
    assert taken.wait(5.0)
    return node, member


def test_a_dump_has_its_digest_while_a_digest_waits_for_a_hub_that_does_not_answer(
    tmp_path: Path, silent_port: tuple[int, threading.Event]
) -> None:
    # Given a node that reports to an address which takes the connection and says nothing
    node, member = reporting_to(silent_port, tmp_path)

    # When a dump wants the node's digest
    began = time.monotonic()
    document = member.digest(2)
    seconds = time.monotonic() - began
    node.die()

    # Then it does not wait for that address
    assert document["node"]["run_id"] == "run-1"
    assert seconds < 1.0


@pytest.fixture
def silent_port() -> Iterator[tuple[int, threading.Event]]:
    """A port that accepts and drips one byte of a header now and then, so that no read of a socket ever times
    out."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken, over = threading.Event(), threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.2):
                connection.sendall(b"x")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                taken.set()
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1], taken
    over.set()
    listener.close()


@pytest.mark.parametrize("failed", [False, True])
def test_the_end_of_a_command_does_not_wait_for_a_hub_that_never_ends_its_answer(
    tmp_path: Path, silent_port: tuple[int, threading.Event], monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    # Given a node whose job hub drips its answer for ever
    monkeypatch.setattr(member_module, "_END_SECONDS", 1.0)
    monkeypatch.setattr(member_module, "_FAILED_END_SECONDS", 1.0)
    node, member = reporting_to(silent_port, tmp_path)

    # When its command ends
    began = time.monotonic()
    member.conclude(failed)
    member.leave()
    seconds = time.monotonic() - began
    node.die()

    # Then it is let go, with a word
    assert seconds < 3.0
    assert "no longer waiting for the hubs of the other nodes" in "\n".join(node.said)


def test_two_nodes_that_are_asked_for_the_whole_job_at_once_both_have_all_of_it(
    make: Callable[..., list[OneNode]],
) -> None:
    # Given two nodes that have joined, and know of each other
    nodes = make(2)
    until(
        lambda: all(
            len(node.member.roster) == 2 and all(row["url"] for row in node.member.roster) for node in nodes
        )
    )

    # When both are asked in the same moment, as `srun diag dump` does
    answers: dict[int, dict[str, Any]] = {}

    def ask(node: OneNode) -> None:
        answers[node.number] = Sender(TOKEN).get(f"http://127.0.0.1:{node.port}", "/dump?deadline=4", 8.0)

    asking = [threading.Thread(target=ask, args=(node,)) for node in nodes]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()

    # Then neither waits for the other's dump to end
    assert [row["reason"] for number in (0, 1) for row in answers[number]["nodes"]] == [""] * 4


class _NoUpstream(http.server.BaseHTTPRequestHandler):
    """As a service mesh answers for a pod that is gone."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(503, "no healthy upstream")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_proxy_that_says_503_for_a_job_hub_that_is_gone_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a node that knows itself, and the address of the job hub, where only a proxy answers
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NoUpstream)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    node = OneNode(1, tmp_path).start()
    member = Member(
        node.hub, JobNodes(2, 1, "127.0.0.1", 29500), node.port, Sender(TOKEN), node.hub.cluster.collector, node.said.append,
        peer_port=proxy.server_address[1],
    )  # fmt: skip
    member.known.entries = [
        {
            "run_id": "run-1",
            "host": "node-1",
            "node_rank": 1,
            "url": f"http://127.0.0.1:{node.port}",
            "gone": False,
            "nodes": 2,
            "rendezvous": "",
            "world_size": 2,
            "ranks": [],
        }
    ]
    member._report()
    waits = member._target

    # When it says so for longer than any hub is busy
    monkeypatch.setattr(member_module, "_MOST_BUSY_SECONDS", -1.0)
    for _ in range(3):
        member._report()
    proxy.shutdown()
    node.die()

    # Then this node takes over
    assert waits.endswith(f":{proxy.server_address[1]}")
    assert member._target == "self" and member.job_hub is not None
    member.job_hub.close()
