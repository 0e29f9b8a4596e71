"""What the memory tests ask of the machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.vm.guest.parts import Parts
from tests.vm.guest.shell import sh
from tests.vm.memory.guest import cgroups
from tests.vm.memory.guest.kernel import kernel_log
from tests.vm.memory.guest.watched import watch
from tests.vm.memory.scenarios import FOR_ALL, SCENARIOS


def prepare() -> dict[str, str]:
    """Cgroups, and a disk with a page cache. The driver is no victim of the machine's own lack of memory."""
    cgroups.prepare()
    sh("""
    modprobe virtio_pci
    modprobe virtio_blk
    modprobe ext4
    mkfs.ext4 -q -O ^has_journal /dev/vda
    mkdir /scratch
    mount /dev/vda /scratch
    chmod 1777 /scratch
    """)
    Path("/proc/self/oom_score_adj").write_text("-999")
    return {"kernel": sh("uname -r").strip(), "meminfo": Path("/proc/meminfo").read_text()}


PARTS = Parts(
    first={"cgroups": prepare, "kernel_log": kernel_log},
    together={
        f"memory:{scenario.name}": partial(watch, scenario)
        for scenario in SCENARIOS
        if scenario.host not in FOR_ALL
    },
    alone={
        f"memory:{scenario.name}": partial(watch, scenario)
        for scenario in SCENARIOS
        if scenario.host in FOR_ALL
    },
)
