"""A rank without torch that steps and saves checkpoints of Megatron's form: `python saver.py MODE ROOT`.

Modes: steps (saves once, then steps until it is ended), fills (saves until the disk is full), dies (SIGKILLs
itself in the second save), cuts (says that it saved, and leaves a truncated file).
"""

from __future__ import annotations

import os
import signal
import sys
import time
import zipfile
from pathlib import Path

SIZE = 3 << 20


def save_checkpoint(mode: str, root: Path, step: int) -> None:
    print(f"saving checkpoint at iteration {step:7d} to {root} in torch_dist format", flush=True)
    folder = root / f"iter_{step:07d}"
    folder.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    for name in ("common.pt", "__0_0.distcp", "__0_1.distcp"):
        with open(folder / name, "wb", buffering=0) as raw, zipfile.ZipFile(raw, "w") as archive:
            archive.writestr("data", os.urandom(1000 if name == "common.pt" else SIZE // 2))
        if mode == "dies" and step > 4 and name == "__0_0.distcp":
            os.kill(os.getpid(), signal.SIGKILL)
    (folder / ".metadata").write_bytes(b"\x80\x04__0_0.distcp\x94__0_1.distcp.")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    if mode == "cuts" and step > 4:
        os.truncate(folder / "__0_1.distcp", 1000)
    print(f"  successfully saved checkpoint from iteration {step:7d} to {root} [ t 1/1, p 1/1 ]", flush=True)


def main() -> int:
    mode, root = sys.argv[1], Path(sys.argv[2])
    for step in range(1, 100_000):
        time.sleep(0.2)
        print(f" iteration {step:8d}/{100000:8d} | loss: 1.0 | grad norm: 2.0 |", flush=True)
        if step % 4 == 0 and (mode != "steps" or step == 4):
            save_checkpoint(mode, root, step)
        if mode == "cuts" and step == 9:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
