"""A launcher and its ranks without torch, for tests: `python ranks.py MODE...` starts one rank a mode.

Modes: work (loops, prints iterations from rank 0, STEPS of them or until the file UNTIL is there), wait
(sleeps in a function called waits_for_the_others), gil (sleeps in C with the GIL), stop (SIGSTOPs itself),
die (SIGKILLs itself), zombie (exits and is never reaped), exit:N: these three once the file DIE_WHEN is there,
or without one after 3 s. Writes "ready" into the FIFO given by READY once all ranks stand where they will stand.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time


def rank_main(mode: str) -> None:
    rank = int(os.environ["RANK"])
    if mode == "work":
        for number in range(int(os.environ.get("STEPS", "1000000"))):
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                sum(range(1000))
            if rank == 0:
                print(f" iteration {number + 1:8d}/{1000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
            if "UNTIL" in os.environ and os.path.exists(os.environ["UNTIL"]):  # noqa: PTH110 - a step must stay cheap
                break
    elif mode == "wait":
        waits_for_the_others()
    elif mode == "gil":
        tell_ready(rank)
        ctypes.PyDLL(None).sleep(3600)
    elif mode == "stop":
        tell_ready(rank)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif mode == "die":
        await_end()
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "zombie":
        await_end()
        os._exit(7)
    elif mode.startswith("exit:"):
        await_end()
        sys.exit(int(mode.split(":")[1]))


def await_end() -> None:
    """Until the file DIE_WHEN is there: who tests that an end is seen makes it once the rank was found."""
    if "DIE_WHEN" not in os.environ:
        time.sleep(3.0)
    else:
        while not os.path.exists(os.environ["DIE_WHEN"]):  # noqa: PTH110 - as in a step
            time.sleep(0.05)


def waits_for_the_others() -> None:
    hub_token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {hub_token}"}  # noqa: F841 - who reads variables must not tell these
    tell_ready(int(os.environ["RANK"]))
    time.sleep(3600)


def tell_ready(rank: int) -> None:
    if "READY" in os.environ:
        with open(os.environ["READY"], "w") as fifo:
            fifo.write(f"{rank}\n")


def main() -> int:
    modes = sys.argv[1:]
    children = []
    for rank, mode in enumerate(modes):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(modes)),
            "MODE": mode,
        }
        children.append(subprocess.Popen([sys.executable, "-u", __file__, *modes], env=env))
    codes = [child.wait() for child, mode in zip(children, modes, strict=True) if mode != "zombie"]
    return max((code if code >= 0 else 128 - code for code in codes), default=0)


if __name__ == "__main__":
    if "MODE" in os.environ:
        rank_main(os.environ.pop("MODE"))
    else:
        sys.exit(main())
