"""Real gloo ranks that ask a server of their machine, which serves one connection at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = sys.argv[1]
    def do_GET(self):
        time.sleep(0.3)
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
# Rank 0 asks first, and keeps its connection; the others do in the steps after.
PROGRAM = """
import http.client, os, subprocess, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
place = [None]
if rank == 0:
    server = subprocess.Popen([sys.executable, "-c", os.environ["SERVER"], sys.argv[1]], stdout=subprocess.PIPE, text=True)
    place = [int(server.stdout.readline())]
dist.broadcast_object_list(place)
client = http.client.HTTPConnection("127.0.0.1", place[0])
for step in range(60):
    if step % 20 == rank * 5:
        client.request("GET", "/")
        client.getresponse().read()
    dist.all_reduce(torch.ones(8))
    time.sleep(0.1)
    if rank == 0:
        print(f" iteration {step + 1:8d}/{60:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
if rank == 0:
    server.kill()
dist.destroy_process_group()
"""


def command(path: Path, protocol: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), protocol]


def test_server_that_keeps_the_connection_of_a_rank_that_waits_is_named(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "HTTP/1.1"), env={"SERVER": SERVER}) as run:
        run.until(
            lambda: (run.hang() or {}).get("finding", {}).get("cause") == "server_keeps_connection", 120
        )
        hang = run.hang()["finding"]

    assert (hang["id"], hang["severity"], hang["ranks"], hang["waiting_ranks"]) == (
        "hang",
        "critical",
        [1],
        [0],
    )
    assert [one["kind"] for one in hang["grounds"]] == ["cycle"]
    assert (
        "a connection not accepted yet by a child of rank 0 (pid " in hang["summary"]
    )  # which started the server
    assert "serves one connection at a time" in hang["advice"]


def test_server_that_closes_after_each_answer_is_no_finding(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "HTTP/1.0"), env={"SERVER": SERVER}) as run:
        code = run.wait(120)
        reported = [one["finding"] for one in run.changes()]

    assert (code, [one for one in reported if one["id"] in ("hang", "held-up")]) == (0, [])
