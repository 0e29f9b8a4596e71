"""That the lab is what it claims to be, and that the job runs on it as on four machines, each node watched
for itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.netns.job import run_job
from tests.netlab import Lab, make_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)"
SERVE = "import socket, sys; s = socket.create_server(('', 7000)); print('up', flush=True); sys.stdin.read()"


def reaches(lab: Lab, rank: int, where: str) -> bool:
    with lab[rank].start(sys.executable, "-c", REACH, where, "7000") as process:
        process.communicate(timeout=30)
        return process.returncode == 0


@pytest.fixture
def served(lab: Lab) -> Lab:
    """Node 0 listens at port 7000."""
    server = lab[0].start(sys.executable, "-c", SERVE)
    assert server.stdout is not None and server.stdout.readline() == "up\n"
    return lab


def test_nodes_have_names_addresses_and_homes_of_their_own(lab: Lab) -> None:
    show = "hostname; hostname -I; touch $HOME/mine $TMPDIR/mine; ls $HOME $TMPDIR /sys/class/net; ls /sys/fs/cgroup | wc -l"

    for rank, node in enumerate(lab.nodes):
        with node.start("sh", "-c", show) as process:
            name, address, *listed, groups = process.communicate(timeout=30)[0].split()

        assert (name, address) == (f"node{rank}", f"10.77.0.{rank + 1}") and int(groups) > 0
        assert listed.count("mine") == 2 and {"eth0", "lo"} <= set(listed)
        assert [other.name for other in lab.nodes if (other.folder / "home" / "mine").exists()][-1] == name


def test_cable_filter_and_plug(served: Lab) -> None:
    assert reaches(served, 3, "node0")

    served[3].pull_cable()
    assert not reaches(served, 3, "node0") and reaches(served, 2, "node0")

    served[3].plug_cable()
    served[2].drop_port(7000)
    assert reaches(served, 3, "node0") and not reaches(served, 2, "node0")

    served.mend()
    assert reaches(served, 2, "node0")


def test_two_labs_have_the_same_addresses_and_do_not_meet(served: Lab, tmp_path: Path) -> None:
    with make_lab(2, tmp_path / "other") as other:
        assert reaches(served, 1, "10.77.0.1") and not reaches(other, 1, "10.77.0.1")


def test_power_off_leaves_no_process_and_no_closed_connection(served: Lab) -> None:
    client = served[1].start(
        sys.executable, "-c", REACH.replace(", timeout=3)", ").recv(1)"), "node0", "7000"
    )
    deadline = time.monotonic() + 30
    while "10.77.0.1:7000" not in served[1].call("ss", "-tnH", "state", "established"):
        assert time.monotonic() < deadline

    served[0].power_off()

    assert served[0].processes() == []
    with pytest.raises(subprocess.TimeoutExpired):
        client.communicate(timeout=2)


def test_lab_ends_with_whoever_made_it(tmp_path: Path) -> None:
    """Killed with SIGKILL: nobody is left to clean up, and nothing is left."""
    text = (
        "import sys; from pathlib import Path; from tests.netlab import Lab; lab = Lab(Path(sys.argv[1]), 1); "
        "lab[0].start('sleep', '1000'); print(lab[0].init.pid, flush=True); sys.stdin.read()"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path / "lab")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None and maker.stdin is not None
    init = psutil.Process(int(maker.stdout.readline()))

    maker.kill()
    maker.communicate(timeout=30)

    init.wait(30)  # raises if it stays
    assert not init.is_running()


def test_healthy_job_ends_well_and_without_a_token_each_node_is_watched_alone(lab: Lab) -> None:
    # given
    with run_job(lab, "--iters=30", "--tp=2", "--ep=2", joined=False) as job:
        # when
        job.await_step(2)
        seen = {rank: [one["rank"] for one in run.ask("/ranks")["ranks"]] for rank, run in job.runs.items()}
        dumps = {rank: [one["rank"] for one in job[rank].dump()["dump"]["ranks"]] for rank in (1, 3)}
        codes = job.await_end()

        # then
        assert codes == {0: 0, 1: 0, 2: 0, 3: 0}, job.text
        assert seen == {0: [0], 1: [1], 2: [2], 3: [3]}
        assert dumps == {1: [1], 3: [3]}
        assert all(run.findings() == [] for run in job.runs.values()), job.text


def test_job_outlives_a_cut_link_that_comes_back_and_a_killed_diag(lab: Lab) -> None:
    """The bundled job's groups wait for 30 minutes, TCP for 15: what the link's cut leaves is a hang."""
    with run_job(lab, "--iters=40", joined=False) as job:
        job.await_step(5)

        job.kill_hub(2)
        lab[3].pull_cable()
        cut = job.iteration
        job.until(lambda: job[1].findings() or lab[3].link()["operstate"] == "DOWN", 20)
        lab[3].plug_cable()

        job.await_step(cut + 5, 120)
        codes = job.await_end(0, 1, 3)
        job.until(lambda: not lab[2].processes(), 60, "the end of node 2's part without its diag")

        assert codes == {0: 0, 1: 0, 3: 0}, job.text
        assert job[2].process.poll() not in (None, 0)
