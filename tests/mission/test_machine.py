"""What stands in the way on the machine itself: left-over processes, another Megatron-LM, limits, NPUs; and what a dump has
of a process."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from diag.launch.launchers.command import read_command
from diag.outputs.terminal.process_text import process_texts
from diag.preflight.gpus import parse_list
from diag.preflight.job_processes import group
from diag.preflight.launch import check_launch
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.leftovers import process_lines
from diag.preflight.line import Line
from diag.preflight.software.fits import check_megatron
from diag.sources.waits.inventory import Inventory
from tests.mission.cases import Case
from tests.preflight.test_leftovers import process
from tests.preflight.test_limits import A3
from tests.preflight.test_software_fits import megatron_tree, seen, target


def texts(lines: Iterable[Line]) -> list[str]:
    return [f"{line.status}: {line.said} -> {line.remedy}" for line in lines]


def left_over() -> list[str]:
    ranks = [
        process(pid, 1, argv=("python", "-u", "rlhf.py"), rank=pid - 4210, job=("torchrun",), by_agent=True)
        for pid in (4210, 4211)
    ]
    all_ = {one.pid: one for one in (process(1, 0, "systemd", ("/sbin/init",)), *ranks)}
    return texts(process_lines(group(all_, 99), {4210: 30 << 30, 4211: 30 << 30}))


@functools.cache
def another_megatron() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        tree = megatron_tree(Path(folder) / "Megatron-LM", "0.15.0")
        what = target("megatron", "rlhf", env={"MEGATRON_LM_PATH": str(tree)})
        lines = texts(check_megatron(what, seen(what, ms_swift="3.7.1")))
    return [line.replace(str(tree), "/data/Megatron-LM") for line in lines]


@functools.cache
def a_dump() -> list[str]:
    """proc/rank0.txt of a bundle, of a process that has a file open and waits in read()."""
    reader, writer = os.pipe()
    with tempfile.NamedTemporaryFile(prefix="shard-") as file:
        sleeper = subprocess.Popen(["cat", "-", file.name], stdin=reader, pass_fds=(file.fileno(),))
        try:
            while "read(" not in " ".join(lines := _of_process(sleeper.pid)):
                assert sleeper.poll() is None
        finally:
            os.close(writer)
            os.close(reader)
            sleeper.wait()
        return [re.sub(r"^ *\d+ -> \S+shard-\S+", "3 -> /data/shard", line) for line in lines]


def _of_process(pid: int) -> list[str]:
    inventory = Inventory()
    inventory.read_kernel(pid)
    inventory.read_map(pid)
    (text,) = process_texts({"rank": 0, **row} for row in inventory.rows()).values()
    return text.splitlines()


def npus() -> list[str]:
    environment: dict[str, str] = {}
    command = read_command(["torchrun", "--nproc_per_node", "4", "t.py"], environment)
    return texts(check_launch(LaunchFacts(command, environment, None, npus=parse_list(A3), cores=64.0)))


CASES = {
    "left-over ranks": Case(
        (11,), "two ranks of a job whose launcher was killed, with 30 GiB of GPU memory each", "diag doctor", left_over,
        ("60 GiB of GPU memory", "kill 4210 4211"), unproven="processes of another user's container",
    ),
    "another Megatron-LM": Case(
        (4,), "MEGATRON_LM_PATH at Megatron-LM 0.15, under ms-swift 3.7.1", "diag doctor -- megatron rlhf ...", another_megatron,
        ("MEGATRON_LM_PATH=/data/Megatron-LM is Megatron 0.15.0, ms-swift 3.7.1 was written for core_r0.13.0",
         "git -C /data/Megatron-LM checkout core_r0.13.0"),
        unproven="the failing save of that pair",
    ),
    "by hand in /proc": Case(
        (15,), "cat /proc/PID/{status,limits,maps}, ls -l /proc/PID/fd and strace, by hand on each pid",
        "diag dump --all-ranks (proc/rank0.txt)", a_dump,
        ("3 -> /data/shard   (read and write, at 0)", "read(0", "Max open files", "VmRSS", "libc.so"),
        unproven="processes of other nodes",
    ),
    "NPUs and ranks": Case(
        (8, 19), "four ranks on a machine whose npu-smi shows two chips", "diag doctor -- torchrun --nproc_per_node 4 t.py",
        npus, ("2 NPUs are here",), unproven="an Ascend machine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()
