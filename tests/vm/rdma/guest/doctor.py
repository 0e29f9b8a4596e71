"""`diag doctor` in the virtual machine: with RDMA as it should be, and without each thing that a container or
cable can lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.vm.guest.shell import as_user, sh
from tests.vm.rdma.guest import network
from tests.vm.rdma.guest.containers import Container
from tests.vm.rdma.scenarios import DEVICE_NODES, LIBRARY, MIB, NOBODY, PROVIDERS

_HOME = Path(__file__).parents[4]
_CMD = ["torchrun", "--nnodes", "2", "--node_rank", "1", "--master_addr", network.ADDRESSES[0], "train.py"]


def doctor() -> dict[str, list[dict[str, str]]]:
    """Lines of RDMA and of locked memory, by case."""
    found = {
        "whole": _lines(),
        "other_hca": _lines(NCCL_IB_HCA="mlx5"),
        "exact_hca": _lines(NCCL_IB_HCA="=rxe1:1"),
        "empty_gid": _lines(NCCL_IB_GID_INDEX="7"),
        "good_gid": _lines(NCCL_IB_GID_INDEX="1"),
        "user_8_mib": _lines(as_user(NOBODY, 8 * MIB)),
    }
    for name, without in (
        ("no_device_nodes", DEVICE_NODES),
        ("no_library", LIBRARY),
        ("no_providers", PROVIDERS),
    ):
        container = Container(f"doctor_{name}", (without,))
        try:
            found[name] = _lines(container.command)
        finally:
            container.remove()
    sh("chmod 600 /dev/infiniband/uverbs0")
    try:
        found["not_permitted"] = _lines(as_user(NOBODY, None))
    finally:
        sh("chmod 666 /dev/infiniband/uverbs0")
    network.set_link(0, up=False)  # the other end loses its carrier, too
    try:
        network.wait_for_port(network.DEVICES[1], "1: DOWN")
        found["down"] = _lines()
    finally:
        network.set_link(0, up=True)
        network.wait_for_port(network.DEVICES[1], "4: ACTIVE")
    return found


def _lines(prefix: Sequence[str] = (), **env: str) -> list[dict[str, str]]:
    script = 'cd "$0" && exec "$@"'
    words = [
        *prefix,
        "sh",
        "-c",
        script,
        str(_HOME),
        sys.executable,
        "-m",
        "diag",
        "doctor",
        "--json",
        "--",
        *_CMD,
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(
            f"{words} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-2000:]}"
        ) from None
    ids = {found["summary"]: found["id"] for found in document["findings"]}
    return [
        {**line, "id": ids.get(line["said"], "")}
        for line in document["checks"]
        if line["what"] in ("RDMA", "locked memory")
    ]
