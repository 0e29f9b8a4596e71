"""Hubs that join, in one process and over real sockets: who judges, who takes over, who is sent away."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diag.agent.cluster import jobhub as jobhub_module
from diag.agent.cluster import member as member_module
from diag.agent.cluster.gather import Gathering, job_engine
from diag.agent.cluster.member import Member
from diag.agent.cluster.post import Failed, Refused, Sender, try_connection
from diag.agent.hub import Hub, HubClock
from diag.launch.launchers.nodes import JobNodes, nodes_of
from diag.model import Placement, Record
from diag.outputs.http.server import Server, serve
from diag.settings import load
from diag.sources.host import run as run_source

TOKEN = "a token of the job"


class OneNode:
    """A node's real hub with its loop and its server, without a job: it is told of a rank."""

    def __init__(
        self, number: int, tmp_path: Path, *, token: str = TOKEN, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.number = number
        self.said: list[str] = []
        settings = load(run_root=tmp_path, token=token)
        self.hub = Hub(settings, None, talk=self.said.append, clock=HubClock())
        self.hub.host, self.hub.run_id = f"node-{number}", f"run-{number}"
        self.hub.bound_beyond_loopback = True  # the token counts
        self.tls = tls
        self.server: Server | None = None
        self.port = 0
        self._ended = threading.Event()
        self._loop = threading.Thread(target=self.hub.loop, args=(self._ended.is_set,), daemon=True)
        place = Placement(number, 0, 3, self.hub.host, 1000 + number, 777, number, 1, "torchrun")
        self.hub.put(run_source.rank_found(place, "python train.py", {}))

    def start(self) -> OneNode:
        certificate, key = self.tls or (None, None)
        self.server = serve(self.hub, "127.0.0.1", self.port, certificate=certificate, key=key)
        self.port = self.server.port
        if not self._loop.is_alive():
            self._loop.start()
        return self

    def join(self, first: OneNode, count: int, ca: Path | None = None) -> None:
        self.join_as(JobNodes(count, self.number, "127.0.0.1", 29500), first.port, ca)

    def join_as(self, nodes: JobNodes, peer_port: int, ca: Path | None = None) -> None:
        assert self.hub.token is not None
        self.hub.cluster.member = Member(
            self.hub, nodes, self.port, Sender(self.hub.token, ca), self.hub.cluster.collector, self.said.append,
            clock=self.hub.clock, scheme="https" if self.tls else "http", peer_port=peer_port,
        )  # fmt: skip
        self.hub.cluster.member.start()

    @property
    def member(self) -> Member:
        assert self.hub.cluster.member is not None
        return self.hub.cluster.member

    def judged_by(self) -> str:
        """The host of the job hub, as this node's engine has heard it."""
        with self.hub.lock:
            verdict = self.hub.engine.job.cluster.verdict
        return verdict.hub if verdict is not None else ""

    def stop_serving(self) -> None:
        if self.server is not None:
            self.server.stop(1.0)
            self.server = None

    def die(self) -> None:
        """As by SIGKILL: nothing is said any more."""
        self.stop_serving()
        if self.hub.cluster.member is not None:
            self.hub.cluster.member._ending.set()
            self.hub.cluster.member._wake.set()
            if self.hub.cluster.member.job_hub is not None:
                self.hub.cluster.member.job_hub.close()
        self._ended.set()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[OneNode]]]:
    monkeypatch.setattr(member_module, "_BACK_SECONDS", 1.0)
    made: list[OneNode] = []

    def of(count: int, tls: tuple[Path, Path] | None = None, ca: Path | None = None) -> list[OneNode]:
        nodes = [OneNode(number, tmp_path, tls=tls).start() for number in range(count)]
        made.extend(nodes)
        for node in nodes:
            node.join(nodes[0], count, ca)
        return nodes

    yield of
    for node in made:
        node.die()


def until(true: Callable[[], object], *nodes: OneNode, seconds: float = 40.0) -> None:
    """Hubs report as if there were news all the time."""
    end = time.monotonic() + seconds
    while not true():
        for node in nodes:
            node.member.hurry()
        assert time.monotonic() < end, [(node.number, node.judged_by(), node.said) for node in nodes]
        time.sleep(0.1)


def judged(nodes: list[OneNode], by: int) -> Callable[[], bool]:
    return lambda: all(node.judged_by() == f"node-{by}" for node in nodes)


def ranks_at(node: OneNode) -> list[int]:
    assert node.member.job_hub is not None
    with node.member.job_hub.lock:
        return sorted(node.member.job_hub.engine.job.ranks)


def test_hub_at_the_rendezvous_judges_and_the_next_takes_over_until_it_is_back(
    make: Callable[..., list[OneNode]],
) -> None:
    nodes = make(3)
    until(judged(nodes, 0), *nodes)
    until(lambda: ranks_at(nodes[0]) == [0, 1, 2], *nodes)
    until(
        lambda: all([len(entry["ranks"]) for entry in node.member.roster] == [1, 1, 1] for node in nodes[1:]),
        *nodes,
    )
    assert [node.member.is_job_hub for node in nodes] == [True, False, False]

    # when the first dies
    port = nodes[0].port
    nodes[0].die()
    until(judged(nodes[1:], 1), *nodes[1:])

    # then the second knows all ranks, those of the lost node too, and says so
    until(lambda: ranks_at(nodes[1]) == [0, 1, 2], *nodes[1:])
    assert "diag: node-1 judges the whole job now" in nodes[2].said
    assert [row["state"] for row in nodes[1].hub.cluster.nodes()][1:] == ["heard", "heard"]

    # and a hub that is started anew at the rendezvous is reported to again
    again = OneNode(0, nodes[0].hub.settings.run_root or Path())
    again.hub.run_id, again.port = "run-0-again", port
    again.start()
    try:
        again.join(again, 3)
        until(judged([again, *nodes[1:]], 0), again, *nodes[1:])
        assert not nodes[1].member.is_job_hub
    finally:
        again.die()


def test_hub_is_found_at_the_port_that_the_list_of_nodes_gives_it(tmp_path: Path) -> None:
    """DIAG_NODES=gpu1:9100,gpu2:9200: this node's own port is not node 0's."""
    nodes = [OneNode(number, tmp_path).start() for number in range(2)]
    hosts, ports = ("127.0.0.1", "127.0.0.1"), (nodes[0].port, nodes[1].port)
    try:
        for node in nodes:
            given = JobNodes(2, node.number, "127.0.0.1", 29500, hosts=hosts, hub_ports=ports)
            node.join_as(given, peer_port=node.port)

        until(lambda: [node.judged_by() for node in nodes] == ["node-0", "node-0"], *nodes)
        assert nodes[1].member.job_hub is None  # it never took itself for node 0
    finally:
        for node in nodes:
            node.die()


def test_dump_of_one_node_has_all_nodes_and_says_why_one_is_missing(
    make: Callable[..., list[OneNode]],
) -> None:
    nodes = make(3)
    until(lambda: judged(nodes, 0)() and len(nodes[1].member.roster) == 3, *nodes)

    whole = nodes[1].hub._dumps.take_now(8.0)
    nodes[2].stop_serving()
    part = nodes[1].hub._dumps.take_now(8.0)

    assert [row["rank"] for row in whole["ranks"]] == [0, 1, 2]
    assert [node["reason"] for node in whole["nodes"]] == ["", "", ""]
    assert [row["rank"] for row in part["ranks"]] == [0, 1]
    assert "refuses the connection" in part["missing"]["2"][0] and part["missing"]["2"][0].startswith(
        "node-2"
    )


def test_hub_with_another_token_is_sent_away_once_and_the_job_hub_names_its_address(
    make: Callable[..., list[OneNode]], tmp_path: Path
) -> None:
    nodes = make(2)
    until(judged(nodes, 0), *nodes)
    stranger = OneNode(2, tmp_path, token="another").start()
    try:
        stranger.join(nodes[0], 3)
        until(lambda: stranger.member.counts.digests["sent", "failed"] > 2, stranger)

        assert (
            len(
                [
                    line
                    for line in stranger.said
                    if "takes no digests from here: this needs the run's token" in line
                ]
            )
            == 1
        )
        assert stranger.judged_by() == ""
        job_hub = nodes[0].member.job_hub
        assert job_hub is not None and job_hub.refused == {"127.0.0.1": "another token"}
        assert ranks_at(nodes[0]) == [0, 1]
    finally:
        stranger.die()


def test_address_that_was_refused_is_not_named_for_ever(
    make: Callable[..., list[OneNode]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [node] = make(1)
    until(lambda: node.member.job_hub is not None)
    job_hub = node.member.job_hub
    assert job_hub is not None

    node.hub.cluster.refuse_digest("10.0.0.7")
    with job_hub.lock:
        named = str(job_hub.verdict(job_hub.own_id))
        monkeypatch.setattr(jobhub_module, "_REFUSED_SECONDS", 0.0)
        later = str(job_hub.verdict(job_hub.own_id))

    assert "10.0.0.7" in named
    assert "10.0.0.7" not in later


@pytest.mark.parametrize(
    ("job_id", "port", "status"),
    [("812", 29501, 403), ("812", 29500, 200), ("811", 29501, 200), ("", 29501, 200)],
    ids=["another job", "a part with an id of its own", "a port that differs", "no name"],
)
def test_job_with_the_same_token_on_the_same_nodes_is_not_mixed_into_this_one(
    make: Callable[..., list[OneNode]], job_id: str, port: int, status: int
) -> None:
    # Given the job hub of job 811, which meets at port 29500
    [node] = make(1)
    node.hub.job_id = "811"
    document = {**node.member.digest(0), "job_id": job_id}
    document["node"] = {**document["node"], "run_id": "run-other", "rendezvous": f"127.0.0.1:{port}"}

    # When a node of this or of another job reports to it
    try:
        Sender(TOKEN).send(f"http://127.0.0.1:{node.port}", "/digests", document, 5.0)
        answered = 200
    except Refused as error:
        answered = error.status
        assert "another job (811, not 812)" in str(error)

    # Then only what has both another name and another port is sent away
    assert answered == status


def test_hub_that_has_not_joined_takes_no_digests(tmp_path: Path) -> None:
    alone = OneNode(0, tmp_path).start()
    try:
        with pytest.raises(Refused, match="has not joined others") as refused:
            Sender(TOKEN).send(f"http://127.0.0.1:{alone.port}", "/digests", {}, 5.0)
        assert refused.value.status == 409
        with pytest.raises(Refused) as wrong:
            Sender("another").send(f"http://127.0.0.1:{alone.port}", "/digests", {}, 5.0)
        assert wrong.value.status == 401
    finally:
        alone.die()


def test_what_is_no_digest_is_refused_with_the_reason(make: Callable[..., list[OneNode]]) -> None:
    nodes = make(2)
    until(judged(nodes, 0), *nodes)

    for junk in ({}, [], "x", {"schema": "diag.digest/9"}, {"schema": "diag.digest/1", "node": 5}):
        with pytest.raises(Refused, match="not a digest") as refused:
            Sender(TOKEN).send(f"http://127.0.0.1:{nodes[0].port}", "/digests", junk, 5.0)
        assert refused.value.status == 422


def test_death_of_a_rank_is_told_on_every_node_at_the_end(make: Callable[..., list[OneNode]]) -> None:
    """Also when the launcher ends within the second: its hub waits for the check that tells of it."""
    nodes = make(2)
    until(lambda: judged(nodes, 0)() and ranks_at(nodes[0]) == [0, 1], *nodes)

    # when rank 1 is killed, and both commands end at once
    nodes[1].hub.put(Record("exits", {"pid": 1001, "status": 9, "how": "pidfd"}, rank=1, host="node-1"))
    for node in nodes:
        node._ended.set()
        node._loop.join(10.0)
    ends = [threading.Thread(target=node.hub.finish, args=(1,)) for node in nodes]
    for end in ends:
        end.start()
    for end in ends:
        end.join(30.0)

    # On a crowded machine node 1 may give up waiting for the job hub's word, and says then what it knows by
    # itself.
    for node, by in zip(nodes, ({"node-0"}, {"node-0", ""}), strict=True):
        found = [(one.id, one.ranks) for one in node.hub.engine.active()]
        assert found == [("rank-died", (1,))], (node.number, found)
        assert {one.reported_by for one in node.hub.engine.active()} <= by


def test_without_a_token_or_with_nodes_off_each_hub_stays_by_itself(tmp_path: Path) -> None:
    said: list[str] = []
    nodes = JobNodes(2, 0, "10.0.0.1", 29500)
    without = Hub(load(run_root=tmp_path), None, talk=said.append)
    without.cluster.join(nodes)
    off = Hub(load(run_root=tmp_path, token=TOKEN, nodes="off"), None, talk=said.append)
    off.cluster.join(nodes)
    single = Hub(load(run_root=tmp_path, token=TOKEN), None, talk=said.append)
    single.cluster.join(replace(nodes, count=1))

    assert (without.cluster.member, off.cluster.member, single.cluster.member) == (None, None, None)
    assert len(said) == 1 and "set the same DIAG_TOKEN on all of them" in said[0]


@pytest.mark.parametrize(
    "given, told",
    [
        ("foo:bar", "nodes='foo:bar'"),
        ("a,b:99999", "'a,b:99999'"),
        ("a b,c", "'a b,c'"),
        ("@/no/such/file", "no such file can be read"),
        ("a,a", "names a host twice"),
    ],
)
@pytest.mark.parametrize("token", [TOKEN, None])
def test_hosts_that_cannot_be_right_are_said(
    given: str, told: str, token: str | None, tmp_path: Path
) -> None:
    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=token, nodes=given), None, talk=said.append)
    hub.cluster.join(nodes_of(["torchrun", "t.py"], {}, given))

    assert hub.cluster.member is None
    assert len(said) == 1 and told in said[0] and said[0].endswith("this node is judged by itself")


@pytest.mark.parametrize("given", ["auto", "off"])
def test_hosts_that_nobody_gave_are_not_spoken_of(given: str, tmp_path: Path) -> None:
    said: list[str] = []
    Hub(load(run_root=tmp_path, nodes=given), None, talk=said.append).cluster.join(
        nodes_of(["torchrun", "t.py"], {}, given)
    )

    assert said == []


@pytest.mark.parametrize("token", [None, ""])
def test_token_that_a_hub_made_up_for_itself_is_none_to_join_by(tmp_path: Path, token: str | None) -> None:
    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=token, host="0.0.0.0", port=0), None, talk=said.append)
    hub.token = "made up, as for every server beyond loopback"
    hub.cluster.open_port = lambda: 9095
    hub.cluster.join(JobNodes(2, 0, "10.0.0.1", 29500))

    assert hub.cluster.member is None
    assert "set the same DIAG_TOKEN on all of them" in said[0]


def test_without_http_it_is_not_the_token_that_is_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=TOKEN, http=False), None, talk=said.append)
    hub.cluster.join(JobNodes(2, 0, "10.0.0.1", 29500))

    assert hub.cluster.member is None
    assert "leave out --no-http" in said[0] and "DIAG_TOKEN" not in said[0]


def test_hub_that_is_bound_to_loopback_by_hand_says_that_others_cannot_reach_it(tmp_path: Path) -> None:
    from diag.outputs.http.serving import Serving
    from diag.outputs.output import OutputContext

    said: list[str] = []
    hub = Hub(load(run_root=tmp_path, token=TOKEN, host="127.0.0.1", port=0), None, talk=said.append)
    serving = Serving(OutputContext(hub, said.append))
    serving.start()
    try:
        hub.cluster.join(JobNodes(2, 0, "10.0.0.1", 29500))
    finally:
        serving.close(None, ended=True)

    assert hub.cluster.member is None
    assert any("cannot reach this one at 127.0.0.1" in line for line in said)


# --- one request
# ---------------------------------------------------------------------------------------------------


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
    assert "refuses the connection" in answers["refuses"].reason
    assert "nothing tells where" in answers["nowhere"].reason
    assert "its name is not known" in answers["no name"].reason
    assert "did not give an answer of diag" in answers["html"].reason
    document = answers["good"].document
    assert document is not None
    engine = job_engine([document["digest"]], time.time())
    assert [*engine.job.ranks] == [1]


@pytest.mark.parametrize("what", ["text", "gzip"])
def test_answer_of_something_else_is_no_hub(what: str) -> None:
    with nonsense() as port, pytest.raises(Failed) as failed:
        Sender(TOKEN).get(f"http://127.0.0.1:{port}", f"/{what}", 5.0)

    assert failed.value.word == "no_hub"


def test_connection_is_tried_with_a_word_for_what_came_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert try_connection(f"http://127.0.0.1:{listener.getsockname()[1]}", 2.0)[0] == "connected"
    assert try_connection(f"http://127.0.0.1:{free_port()}", 2.0)[0] == "refused"
    assert try_connection("http://no-such-host.invalid:9", 2.0)[0] == "unresolved"


# --- TLS
# -------------------------------------------------------------------------------------------------------------


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


def test_a_dump_has_its_digest_while_a_digest_waits_for_a_hub_that_does_not_answer(
    tmp_path: Path, silent_port: tuple[int, threading.Event]
) -> None:
    # Given a node that reports to an address which takes the connection and says nothing
    port, taken = silent_port
    node = OneNode(1, tmp_path).start()
    node.hub.cluster.member = member = Member(
        node.hub, JobNodes(2, 1, "127.0.0.1", 29500), node.port, Sender(TOKEN), node.hub.cluster.collector, node.said.append,
        clock=node.hub.clock, peer_port=port,
    )  # fmt: skip
    member.start()
    assert taken.wait(5.0)

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
    port, taken = silent_port
    node = OneNode(1, tmp_path).start()
    node.hub.cluster.member = member = Member(
        node.hub, JobNodes(2, 1, "127.0.0.1", 29500), node.port, Sender(TOKEN), node.hub.cluster.collector, node.said.append,
        clock=node.hub.clock, peer_port=port,
    )  # fmt: skip
    member.start()
    assert taken.wait(5.0)

    # When its command ends
    began = time.monotonic()
    member.conclude(failed)
    member.leave()
    seconds = time.monotonic() - began
    node.die()

    # Then it is let go, with a word
    assert seconds < 3.0
    assert "are not waited for any longer" in "\n".join(node.said)


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
        clock=node.hub.clock, peer_port=proxy.server_address[1],
    )  # fmt: skip
    member._roster = [
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
