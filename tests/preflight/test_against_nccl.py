"""The interface that we say NCCL takes, against the one that NCCL takes: ncclGetUniqueId needs no GPU and
tells it.

Runs where a libnccl.so.2 is at hand (LIBNCCL, or the wheel beside a torch for CUDA). Last by hand,
2026-11-21: NCCL 2.21.5, 2.27.5, 2.28.9 and 2.32.3: these 40 draws each, and 120 more with two of them; none
differed.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CALL = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128)))"
OURS = (
    "import json, os, sys; from diag.preflight.plan import interfaces_here; from diag.preflight.nccl_interfaces import choose; "
    "print(json.dumps([[n, a.ip] for n, a in choose(interfaces_here(), os.environ, tuple(json.loads(sys.argv[1]))).interfaces]))"
)
# NCCL 2.21.5 and 2.28.9, 2026-11-21:
#   vm:27316:27316 [32767] NCCL INFO Bootstrap : Using eth0:192.0.2.2<0>
#   vm:27404:27404 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>
USING = re.compile(r"Bootstrap ?: Using ([^:]+):(\S+)<\d+>")
NAMES = ("eth0", "eth1", "ib0", "docker0", "virbr0", "ens3", "bond0", "br-abc")
VALUES = (
    None,
    None,
    None,
    "eth",
    "=eth1",
    "^docker",
    "^docker,lo",
    "ens,bond",
    "lo",
    "nope",
    "^=eth0",
    "e",
    "=",
    "^",
    "eth0:5",
)


def library() -> Path | None:
    named = [Path(os.environ["LIBNCCL"])] if os.environ.get("LIBNCCL") else []
    beside = [Path(folder) / "nvidia/nccl/lib/libnccl.so.2" for folder in sys.path]
    return next((path for path in [*named, *beside] if path.is_file()), None)


def wait_for_carrier(namespace: str, name: str) -> None:
    deadline = time.monotonic() + 20
    while (
        json.loads(subprocess.check_output(["ip", "-n", namespace, "-json", "link", "show", name]))[0][
            "operstate"
        ]
        != "UP"
    ):
        assert time.monotonic() < deadline, name


def version_of(path: Path) -> list[int]:
    code = "import ctypes, sys; v = ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(v.value)"
    number = int(subprocess.check_output([sys.executable, "-c", code, str(path)]))
    return [number // 10000, number // 100 % 100, number % 100]


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"diag-nccl-{os.getpid()}"
    if (
        os.geteuid() != 0
        or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("network namespaces need root and iproute2")
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.mark.live
@pytest.mark.parametrize("seed", range(40))
def test_choice_is_that_of_nccl(namespace: str, seed: int) -> None:
    path = library()
    if path is None:
        pytest.skip("no libnccl.so.2 here")
    chance = random.Random(seed)

    def ip(*words: str) -> None:
        subprocess.run(["ip", "-n", namespace, *words], check=True, capture_output=True)

    # given interfaces and variables
    running: list[str] = []
    if chance.random() < 0.9:
        ip("link", "set", "lo", "up")
    for name in chance.sample(NAMES, chance.randrange(4)):
        number = NAMES.index(name) + 1
        ip("link", "add", name, "type", "veth", "peer", "name", f"p{number}")
        for end in (name, f"p{number}"):
            ip("link", "set", end, "addrgenmode", "none")
        if chance.random() < 0.85:
            ip("link", "set", name, "up")
            if chance.random() < 0.7:  # else it has no carrier
                ip("link", "set", f"p{number}", "up")
                running.append(name)
        if chance.random() < 0.75:
            ip("address", "add", f"10.{number}.0.1/24", "dev", name)
        if chance.random() < 0.4:
            ip("address", "add", f"fd00:{number}::1/64", "dev", name, "nodad")
    for name in running:
        wait_for_carrier(namespace, name)
    env = {"PATH": os.environ["PATH"], "NCCL_DEBUG": "INFO"}
    value, family = chance.choice(VALUES), chance.choice((None, None, "AF_INET", "AF_INET6", "v6"))
    env.update(
        {"NCCL_SOCKET_IFNAME": value} if value is not None else {},
        **({"NCCL_SOCKET_FAMILY": family} if family else {}),
    )

    # when NCCL and we choose
    inside = ["ip", "netns", "exec", namespace, sys.executable, "-c"]
    said = subprocess.run(
        [*inside, CALL, str(path)], env=env, capture_output=True, text=True, timeout=60, check=False
    ).stdout
    ours = json.loads(subprocess.check_output([*inside, OURS, json.dumps(version_of(path))], env=env))

    # then it is the same
    theirs = USING.search(said)
    assert (ours[0] if ours else None) == ([theirs[1], theirs[2].partition("%")[0]] if theirs else None), said
