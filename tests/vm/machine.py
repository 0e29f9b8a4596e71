"""Starts the virtual machine with this working tree's diag in it, and takes what its driver says, line by
line."""

from __future__ import annotations

import compileall
import json
import py_compile
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm.image import REPOSITORY, Image

# Emulated: /dev/kvm is not everywhere, and where it is it may not work nested. SSE4.2 and POPCNT are what
# wheels are built for.
_QEMU = ("qemu-system-x86_64 -accel tcg,thread=multi -cpu qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt -smp 2 -m 2500 -nic none "
         "-display none -monitor none -no-reboot")  # fmt: skip
_KERNEL_WORDS = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off psi=1"
_DISK_BYTES = 1 << 30  # empty, with holes: the root is in memory, where no page cache could be given back
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Answers:
    """What the driver said of each part: {"part": name, "seconds": ..., "result": ...} or "error" instead of
    result."""

    parts: dict[str, dict[str, Any]]
    console: str
    seconds: float

    def __getitem__(self, part: str) -> Any:
        """Raises AssertionError with the error of a part that failed inside the machine, or with what the
        machine last said."""
        if part not in self.parts:
            raise AssertionError(
                f"the machine said nothing of {part!r}; its console ends:\n{self.console[-3000:]}"
            )
        answer = self.parts[part]
        if "error" in answer:
            raise AssertionError(f"{part} failed inside the machine:\n{answer['error']}")
        return answer["result"]


def run(
    image: Image, folder: Path, seconds: float, suites: Sequence[str] = (), parts: Sequence[str] = ()
) -> Answers:
    """Boots, lets the driver do `parts` (all) of `suites` (all), and ends the machine after `seconds` at the
    latest."""
    initrd, console, answers = folder / "initrd", folder / "console.txt", folder / "answers.jsonl"
    disk = folder / "disk"
    began = time.monotonic()
    with open(initrd, "wb") as whole:
        for piece in (image.rootfs, _overlay(folder)):
            with open(piece, "rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)
    with open(disk, "wb") as file:
        file.truncate(_DISK_BYTES)
    chosen = [f"{name}={','.join(words)}" for name, words in (("suites", suites), ("parts", parts)) if words]
    words = [*_QEMU.split(), "-kernel", str(image.kernel), "-initrd", str(initrd),
             "-append", " ".join([_KERNEL_WORDS, *chosen]),
             "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe",
             "-serial", f"file:{console}", "-serial", f"file:{answers}"]  # fmt: skip
    machine = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, complaints = machine.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        complaints = f"ended after {seconds:g} s".encode()
    finally:
        machine.kill()
        machine.wait()
        initrd.unlink()
        disk.unlink()
    said = console.read_text("utf-8", "replace") if console.exists() else ""
    return Answers(read(answers), said + complaints.decode("utf-8", "replace"), time.monotonic() - began)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The driver's lines by part."""
    parts = {}
    for line in path.read_text("utf-8", "replace").splitlines() if path.exists() else ():
        try:
            answer = json.loads(line)
        except ValueError:
            continue  # torn: the machine was ended; what is missing is told by whoever asks for it
        parts[answer["part"]] = answer
    return parts


def _overlay(folder: Path) -> Path:
    """diag and the driver as a second archive: the kernel unpacks it over the first."""
    tree, archive = folder / "overlay", folder / "overlay.cpio"
    home = tree / "diag"
    for name in ("diag", "rules", "dashboards", "deploy", "tests/vm", "tests/captures/nccl/2.28.9"):
        shutil.copytree(REPOSITORY / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(REPOSITORY / "tests/__init__.py", home / "tests/__init__.py")
    shutil.copy2(_HERE / "guest/init", tree / "init")
    (tree / "init").chmod(0o755)
    if sys.version_info[:2] == (3, 11):  # the machine's Python: it need not compile
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(home, quiet=1, stripdir=str(tree), invalidation_mode=unchecked)
    names = subprocess.run(["find", ".", "-print0"], cwd=tree, check=True, capture_output=True).stdout
    with open(archive, "wb") as file:
        words = "cpio --null --create --format=newc --owner=0:0 --quiet"
        subprocess.run(words.split(), cwd=tree, input=names, stdout=file, check=True)
    shutil.rmtree(tree)
    return archive
