"""What real MPI launchers put into the environment of their processes, on one node and on two. The second
"node" is this machine under another name: mpirun's ssh is a script that runs the daemon in a UTS namespace of
that name, which needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diag.launch.launchers import identify
from diag.launch.launchers.nodes import JobNodes, nodes_of, nodes_of_rank

OPENMPI = shutil.which("mpirun.openmpi")
HYDRA = shutil.which("mpiexec.hydra")
needs_openmpi = pytest.mark.skipif(OPENMPI is None, reason="openmpi-bin is not installed")
needs_hydra = pytest.mark.skipif(HYDRA is None, reason="mpich is not installed")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare for two nodes"
)

# Skips ssh's own options, then runs the rest as a machine called by the next word.
FAKE_SSH = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
name=$1; shift
exec unshare --uts sh -c "hostname $name; $*"
"""
# Into a file of its own: mpirun mixes what its processes print, also within lines.
TELL = """
import json, os, pathlib, socket, sys
told = {"host": socket.gethostname(), "env": dict(os.environ)}
pathlib.Path(sys.argv[1], f"{told['host']}-{os.getpid()}.json").write_text(json.dumps(told))
"""


def ranks(tmp_path: Path, launcher: str, *words: str, hosts: str = "") -> list[tuple[str, dict[str, str]]]:
    """The host's name and the environment of each process that `launcher words` started, by its rank."""
    ssh, hostfile = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text(FAKE_SSH)
    ssh.chmod(0o755)
    hostfile.write_text(hosts)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    given = [word.replace("SSH", str(ssh)).replace("HOSTS", str(hostfile)) for word in words]

    program, folder = tmp_path / "tell.py", tmp_path / "told"
    program.write_text(TELL)
    folder.mkdir()

    done = subprocess.run(
        [launcher, *given, sys.executable, str(program), str(folder)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    told = [json.loads(path.read_text()) for path in folder.iterdir()]
    told.sort(key=lambda one: int(one["env"].get("OMPI_COMM_WORLD_RANK") or one["env"]["PMI_RANK"]))
    return [(one["host"], one["env"]) for one in told]


def of_rank(env: dict[str, str]) -> JobNodes:
    found = nodes_of_rank(env)
    assert found is not None
    return found


@needs_openmpi
def test_two_slots_of_this_machine_are_one_node(tmp_path: Path) -> None:
    found = ranks(tmp_path, str(OPENMPI), "-np", "2", "--oversubscribe")

    assert [(of_rank(env).count, of_rank(env).node_rank, of_rank(env).launcher) for _, env in found] == [
        (1, 0, "openmpi")
    ] * 2
    # OMPI_COMM_WORLD_NODE_RANK of the second process is 1, and that is no node
    assert [who.node_rank for _, env in found if (who := identify(env))] == [0, 0]


@needs_hydra
def test_two_processes_of_hydra_are_one_node(tmp_path: Path) -> None:
    found = ranks(tmp_path, str(HYDRA), "-n", "2")

    assert [(of_rank(env).count, of_rank(env).node_rank, of_rank(env).launcher) for _, env in found] == [
        (1, 0, "pmi")
    ] * 2


TWO = "nodea slots=2\nnodeb slots=2\n"
OPENMPI_SSH = ("--mca", "plm_rsh_agent", "SSH", "--oversubscribe", "--hostfile", "HOSTS")


@needs_openmpi
@needs_root
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-np", "4"], [("nodea", 0), ("nodea", 0), ("nodeb", 1), ("nodeb", 1)]),
        (["-npernode", "1"], [("nodea", 0), ("nodeb", 1)]),
        (["--map-by", "ppr:1:node"], [("nodea", 0), ("nodeb", 1)]),
        # ranks go round the nodes, or the nodes differ: nothing is reckoned from a rank
        (
            ["--map-by", "node", "-np", "4"],
            [("nodea", None), ("nodeb", None), ("nodea", None), ("nodeb", None)],
        ),
        (["-np", "3"], [("nodea", None), ("nodea", None), ("nodeb", None)]),
    ],
)
def test_open_mpi_on_two_nodes(
    tmp_path: Path, words: list[str], expected: list[tuple[str, int | None]]
) -> None:
    found = ranks(tmp_path, str(OPENMPI), *OPENMPI_SSH, *words, hosts=TWO)

    assert [(host, of_rank(env).node_rank) for host, env in found] == expected
    assert {of_rank(env).count for _, env in found} == {2}


@needs_openmpi
@needs_root
def test_launcher_that_open_mpi_starts_on_each_node_knows_its_place(tmp_path: Path) -> None:
    found = ranks(tmp_path, str(OPENMPI), *OPENMPI_SSH, "-npernode", "1", hosts=TWO)

    words = ["torchrun", "--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "nodea:29400", "t.py"]
    by_host = {host: nodes_of(words, env) for host, env in found}

    assert {host: (nodes.count, nodes.node_rank) for host, nodes in by_host.items()} == {
        "nodea": (2, 0),
        "nodeb": (2, 1),
    }


@needs_openmpi
@needs_root
@pytest.mark.parametrize("processes", ["2", "3", "4"])
def test_hosts_reckoned_from_mpiruns_words_are_those_where_its_processes_come_up(
    tmp_path: Path, processes: str
) -> None:
    hosts = tmp_path / "list"
    hosts.write_text(TWO)
    nodes = nodes_of(["mpirun", "--hostfile", str(hosts), "-np", processes, "python", "t.py"], {})

    found = ranks(tmp_path, str(OPENMPI), *OPENMPI_SSH, "-np", processes, hosts=TWO)

    used = list(dict.fromkeys(host for host, _ in found))
    assert nodes.count == len(used)
    assert list(nodes.hosts) == (used if len(used) > 1 else [])


@needs_hydra
@needs_root
def test_hydra_on_two_nodes_tells_how_many_they_are_and_not_which(tmp_path: Path) -> None:
    words = ["-launcher", "ssh", "-launcher-exec", "SSH", "-f", "HOSTS"]
    (tmp_path / "four").mkdir()
    (tmp_path / "two").mkdir()
    four = ranks(tmp_path / "four", str(HYDRA), *words, "-n", "4", hosts="nodea:2\nnodeb:2\n")
    two = ranks(tmp_path / "two", str(HYDRA), *words, "-n", "2", "-ppn", "1", hosts="nodea\nnodeb\n")

    assert [(host, of_rank(env).count, of_rank(env).node_rank) for host, env in four] == [
        ("nodea", 2, None), ("nodea", 2, None), ("nodeb", 2, None), ("nodeb", 2, None),
    ]  # fmt: skip
    assert [(host, of_rank(env).count, of_rank(env).node_rank) for host, env in two] == [
        ("nodea", 2, 0),
        ("nodeb", 2, 1),
    ]
