"""What other machines send: digests to a hub, verdicts back to a node, answers to `diag top`, `diag dump` and
NCCL RAS."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diag.text.errors import DiagError

__all__ = ["TARGETS", "a_digest", "a_hub", "a_state", "a_verdict"]

_NOW = 2000.0


@functools.cache
def _node() -> Any:
    from diag.engine.journal import JournalReader, segments
    from tests.cluster_unit.nodes import NodeEngine
    from tests.labs.fuzz.targets.base import CAPTURES

    one = NodeEngine(0)
    for record in JournalReader(segments(CAPTURES / "h200-live" / "loop-data-hang")):
        one.engine.feed(record)
    return one


@functools.cache
def _digest_text() -> str:
    one = _node()
    one.maker.forget()
    document = {
        **one.digest(one.engine.now, 1),
        "schema": "diag.digest/1",
        "wall": 1.6e9,
        "port": 9095,
        "scheme": "http",
        "roster_seen": [],
        "job_id": "77",
    }
    return json.dumps(document)


def a_digest() -> dict[str, Any]:
    """Of a real hang of two ranks."""
    return dict(json.loads(_digest_text()))


def a_verdict() -> dict[str, Any]:
    from diag.model import NotChecked
    from diag.model.observations import JobVerdict
    from diag.sources import digest as digest_source

    findings = tuple(_node().engine.active())
    return digest_source.verdict(
        JobVerdict(None, "gpu-0", 3, 4, findings, (NotChecked("node 2", "silent"),)), _NOW
    )


@contextlib.contextmanager
def a_hub(nodes: int = 4) -> Iterator[Any]:
    """A real hub of the first node of a job, which has joined the others as far as it can without a network;
    never started."""
    from diag.agent.cluster.member import Member
    from diag.agent.cluster.post import Sender
    from diag.agent.hub import Hub
    from diag.launch.launchers.nodes import JobNodes
    from diag.settings import Settings

    hub = Hub(Settings(token="t"), None)
    told = JobNodes(count=nodes, node_rank=0, hosts=("10.0.0.1",), address="10.0.0.1", port=29500)
    hub.cluster.member = Member(hub, told, 9095, Sender("t"), hub.cluster.collector, lambda text: None)
    try:
        yield hub
    finally:
        if hub.cluster.member.job_hub is not None:
            hub.cluster.member.job_hub.close()


class _NoThread:
    """In place of the job hub's thread: what was taken is judged when the target says so."""

    def __init__(self, *args: Any, **named: Any) -> None: ...

    def start(self) -> None: ...

    def join(self, timeout: float) -> None: ...


def _digest(data: bytes, home: Path) -> None:
    """As the HTTP route takes it, then the engine of the job hub."""
    import zlib
    from unittest import mock

    from diag.outputs.http.app import _unpacked
    from diag.text.errors import Busy, OtherJob

    try:
        document = _unpacked(data, "")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, zlib.error):
        return
    with mock.patch("diag.agent.cluster.jobhub.threading.Thread", _NoThread), a_hub() as hub:
        for address in ("10.0.0.2", "fd00::1"):
            try:
                answer = hub.cluster.take_digest(json.loads(json.dumps(document)), address)
            except (
                Busy,
                OtherJob,
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):
                continue  # what the route answers with 4xx or 503
            json.dumps(answer)
        job_hub = hub.cluster.member.job_hub
        if job_hub is None:
            return
        job_hub._take(0.0)
        job_hub._tend()
        json.dumps(job_hub.verdict(job_hub.own_id))
        hub.cluster.member.is_job_hub  # noqa: B018
        json.dumps(hub.cluster.nodes())
        hub.cluster.other_ranks()
        job_hub.facts()
        hub.cluster.member._candidates()
        hub.cluster.take_digest(a_digest(), "10.0.0.7")  # what one node sent keeps no other from being heard


def _verdict(data: bytes, home: Path) -> None:
    """What a member hears as the answer to its digest."""
    from diag.agent.cluster.jobdump import other_hubs

    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return
    with a_hub() as hub:
        member = hub.cluster.member
        try:
            member._hear(answer, "http://10.0.0.9:9095")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return  # counted as failed
        member._candidates()
        other_hubs(member)
        hub._take(0.0)
        hub.cluster.nodes()
        hub.targets()


def _answers() -> list[bytes]:
    base = {
        "hub": "run-9",
        "over": False,
        "host": "gpu-0",
        "every": 5.0,
        "detail": 0,
        "version": 3,
        "roster_version": 2,
        "want": False,
    }
    entry = {
        "run_id": "run-9",
        "host": "gpu-0",
        "node_rank": 0,
        "url": "",
        "gone": False,
        "nodes": 4,
        "rendezvous": "10.0.0.1:29500",
        "world_size": 8,
        "ranks": [[0, 0, 20, 5]],
    }
    return [
        json.dumps(one).encode()
        for one in (
            {
                **base,
                "verdict": a_verdict(),
                "roster": [
                    entry,
                    {**entry, "run_id": "run-8", "node_rank": 1, "url": "http://10.0.0.3:9095"},
                ],
            },
            {**base, "verdict": a_verdict()},
        )
    ]


# --- a server that lies
# ------------------------------------------------------------------------------------------


@functools.cache
def _served() -> tuple[str, list[bytes]]:
    """An HTTP server that answers everything with the bytes in the list, and its address."""
    answers: list[bytes] = [b""]
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), connection:
                connection.settimeout(1.0)
                connection.recv(65536)
                connection.sendall(answers[0])

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", answers


@functools.cache
def a_state() -> str:
    """/state of a recorded hang."""
    from diag.cli.recorded import RecordedView
    from diag.engine.replay import replay
    from diag.outputs.view import parts
    from diag.outputs.view.view import json_bytes
    from tests.labs.fuzz.targets.base import CAPTURES

    place = CAPTURES / "h200-live" / "loop-data-hang"
    view = RecordedView(replay([place])[0], [place])
    return json_bytes({"schema": "diag.state/1", **parts.with_others(parts.own_parts(view), view)}).decode()


def _hundred(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def _shown(what: Any) -> str:
    from tests.labs.fuzz.targets.base import CONTROLS

    text = str(what)
    assert not CONTROLS & set(text), f"control characters reach the terminal: {text[:200]!r}"
    return text


def _top(data: bytes, home: Path) -> None:
    """`diag top --once`: the state as JSON, then one picture, and what its panes say."""
    from diag.cli.tui import rendering
    from diag.cli.tui.once import picture
    from diag.cli.tui.state import State
    from diag.cli.tui.table import Table

    state = State()
    try:
        state.take_document(json.loads(data))
    except (ValueError, RecursionError):
        return
    _shown(picture(state, "LIVE", width=100, colour=False, lang="en"))
    for order in ("trouble", "rank"):
        Table(state, 80, order)
    rendering.findings_lines(state, 80, "zh")
    for rank in list(state.rows)[:2]:
        state.url_of(rank)
        rendering.rank_lines(state.rows[rank], state, None, "", 80)
    state.culprits()


def _stacks(data: bytes, home: Path) -> None:
    """The stacks of a rank and a dump, as `diag top` shows them."""
    from diag.cli.tui import rendering
    from diag.cli.tui.line import plain
    from diag.cli.tui.state import State

    state = State()
    state.take_document(json.loads(a_state()))
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return  # Live._ask says that this is no hub
    row = next(iter(state.rows.values()))
    for line in (*rendering.rank_lines(row, state, document, "", 80), *rendering.dump_lines(document, 80)):
        _shown(plain(line))
    _shown(rendering.format_next(document))
    _shown(rendering.format_bundle(document))


def _events(data: bytes, home: Path) -> None:
    """The stream of events, in pieces, to the screen's inbox."""
    from diag.cli.tui.live import EventParser, Live
    from diag.cli.tui.state import State

    live, state, parser = Live("http://127.0.0.1:9", None, None, None), State(), EventParser()
    step = max(1, len(data) // 7)
    try:
        for begin in range(0, len(data), step):
            for event, text in parser.feed(data[begin : begin + step]):
                live._take(event, text)
    except ValueError:
        return
    parts, link = live.inbox.take()
    if link is not None:
        _shown(link.about)
    for part, value in parts.items():
        with contextlib.suppress(ValueError):
            state.take(part, value)


def _event_seeds() -> list[bytes]:
    state = json.loads(a_state())
    rows = {"whole": True, "rows": state.pop("ranks")}
    parts = {**state, "ranks": rows, "trouble": {"detail": "busy"}}
    return [
        b"retry: 2000\n\n"
        + b"".join(
            f"event: {name}\ndata: {json.dumps(part)}\n\n".encode()
            for name, part in parts.items()
            if len(json.dumps(part)) < 12_000
        ),
        b": quiet\n\nevent: end\ndata: {}\n\n",
    ]


def _http(data: bytes, home: Path) -> None:
    """The clients of `diag dump` and `diag top`: any bytes in place of an answer."""
    from diag.cli.client.http import get
    from diag.cli.tui.live import Live

    url, answers = _served()
    answers[0] = data
    with contextlib.suppress(OSError, ValueError):
        get(f"{url}/state", {}, 1.0)
    try:
        Live(url, None, None, None).first()
    except DiagError as error:
        _shown(error)
        _shown(error.hint)


def _command(verb: str, data: bytes, home: Path) -> None:
    """`diag VERB --endpoint`, whole, to a terminal that is read: what it prints has nothing that turns or
    paints."""
    from diag.cli.main import main

    url, answers = _served()
    answers[0] = _hundred(data)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main([*verb.split(), "--endpoint", url])
    _shown(said.getvalue())


def _dumped() -> list[bytes]:
    from diag.outputs.terminal.text import dump_text

    state = json.loads(a_state())
    document = {
        "schema": "diag.dump/1",
        "report": state["report"],
        "text": "rank 3: data",
        "missing": {"1": "its stack was not read"},
        "ranks": [],
        "seconds": 0.1,
        "probes": [],
        "native": {},
        "bundle": "/tmp/b.tar.gz",
        "found": True,
    }
    screen = dump_text(document, colour=False, width=80)
    return [json.dumps(one).encode() for one in (document, {**document, "screen": screen}, state)]


def _ras(data: bytes, home: Path) -> None:
    from diag.sources.collectives import ras_json, ras_text

    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        ras_text.read_text(text)
    try:
        report, _ = ras_json.load(text)
    except ValueError:
        return
    with contextlib.suppress(ValueError, TypeError, KeyError):
        ras_json.read_communicators(report)


def _state_seeds() -> list[bytes]:
    return [a_state().encode()]


def _targets() -> tuple[Any, ...]:
    from tests.labs.fuzz.targets.base import Target, of_files

    page = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    answers = [
        _hundred(b'{"schema": "diag.state/1"}'),
        page + b"\r\n{}",
        page + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.0 401 no\r\n\r\n",
        b'HTTP/1.1 500 x\r\nContent-Length: 20\r\n\r\n{"detail": "broken"}',
    ]
    return (
        Target(
            "digests",
            "digests of other nodes (`POST /digests`), to the job hub's engine",
            "json",
            lambda: [_digest_text().encode()],
            _digest,
        ),
        Target("verdicts", "a job hub's answers to a node: verdict, roster", "json", _answers, _verdict),
        Target("top-state", "`/state` of a hub, as `diag top` draws it", "json", _state_seeds, _top),
        Target(
            "top-stacks",
            "`/ranks/N/stacks` and `/dump` of a hub, as `diag top` shows them",
            "json",
            _dumped,
            _stacks,
        ),
        Target("top-events", "`/events` of a hub", "text", _event_seeds, _events),
        Target("http-client", "any bytes in place of a hub's HTTP answer", "bytes", lambda: answers, _http),
        Target(
            "dump-endpoint",
            "`diag dump --endpoint` of a server that lies",
            "json",
            _dumped,
            functools.partial(_command, "dump"),
        ),
        Target(
            "top-endpoint",
            "`diag top --once --endpoint` of a server that lies",
            "json",
            _state_seeds,
            functools.partial(_command, "top --once"),
        ),
        Target(
            "ras-answers",
            "answers of NCCL RAS, text and JSON",
            "text",
            of_files("loose/*/*ras*.txt", "sources/ras/*/*"),
            _ras,
        ),
    )


TARGETS = _targets()
