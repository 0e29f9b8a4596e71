"""diag's reader of the kernel's log, as root and as a user, while the kernel kills a neighbour for its
memory.

`python -m tests.vm.memory.guest.kernel` is the reader: it says when it is ready, reads until its stdin ends,
and prints its records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from diag.agent.samplers.kernel import KernelLogSampler
from diag.agent.samplers.sampler import Reporter
from tests.vm.guest.shell import as_user
from tests.vm.memory.guest import host
from tests.vm.memory.scenarios import NOBODY

_RESTRICT = Path("/proc/sys/kernel/dmesg_restrict")


def kernel_log() -> dict[str, list[dict[str, Any]]]:
    """Records by who read, and under which dmesg_restrict."""
    found = {}
    for name, user, restrict in (("root", 0, "1"), ("user", NOBODY, "1"), ("user_unrestricted", NOBODY, "0")):
        _RESTRICT.write_text(restrict)
        words = [*as_user(user, None), sys.executable, "-m", "tests.vm.memory.guest.kernel"]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/diag"
        ) as reader:
            assert reader.stdout is not None
            if reader.stdout.readline() != "ready\n":
                raise RuntimeError(f"no reader as {name}")
            host.neighbour()
            said, _ = reader.communicate(timeout=60)
        found[name] = json.loads(said)
    _RESTRICT.write_text("1")
    return found


def main() -> None:
    records: list[dict[str, Any]] = []
    watch = KernelLogSampler(Reporter(lambda record: records.append(record.to_json()), "gpu-node-0"))
    watch.start()
    print("ready", flush=True)
    sys.stdin.read()
    watch.stop()
    print(json.dumps(records))


if __name__ == "__main__":
    main()
