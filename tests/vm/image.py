"""The virtual machine's image: a kernel with soft-RoCE and a small Debian with Python and diag's
dependencies, in build/vm.

Built once for each recipe (`image.sh` and the dependencies in pyproject.toml); what is tested comes on top at
each start.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "vm"
_RECIPE = Path(__file__).with_name("image.sh")
_PYTHON = "3.11"  # Debian 12's, in the machine
# `make test-vm` installs them from Debian where it may.
_TOOLS = ("qemu-system-x86_64", "debootstrap", "cpio", "dpkg", "unshare")


@dataclass(frozen=True, slots=True)
class Image:
    """`build_seconds` is None where an earlier run had built it."""

    kernel: Path
    rootfs: Path
    build_seconds: float | None


def why_not() -> str:
    """Why this machine cannot build and start it; empty when it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if platform.machine() != "x86_64":
        return f"the image is for x86_64, and this is {platform.machine()}"
    if missing:
        return f"{', '.join(missing)} not installed: `make test-vm` as root installs them (Debian)"
    if os.geteuid() != 0 and not (_folder() / "rootfs.cpio").exists():
        return "debootstrap needs root to build the image"
    return ""


def image() -> Image:
    """Takes a minute or two the first time. Raises CalledProcessError; the recipe's last words are on stderr."""
    folder, began, built = _folder(), time.monotonic(), False
    if not (folder / "rootfs.cpio").exists():
        built = True
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for old in BUILD.iterdir():  # an image is 200 MB: only the newest is kept
            if old.is_dir() and old != folder:
                shutil.rmtree(old, ignore_errors=True)
        _install_dependencies(folder / "site")
        # In a mount namespace of its own: what debootstrap mounts is gone with it, however it ends.
        subprocess.run(["unshare", "--mount", "sh", str(_RECIPE), str(folder)], check=True)
    return Image(folder / "vmlinuz", folder / "rootfs.cpio", time.monotonic() - began if built else None)


def _folder() -> Path:
    recipe = _RECIPE.read_bytes() + "\n".join(_dependencies()).encode()
    return BUILD / hashlib.sha256(recipe).hexdigest()[:12]


def _dependencies() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def _install_dependencies(site: Path) -> None:
    """Wheels for the machine's Python, whichever runs here."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", str(site),
         "--only-binary=:all:", "--implementation", "cp", "--python-version", _PYTHON,
         "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64", *_dependencies()],
        check=True,
    )  # fmt: skip


if __name__ == "__main__":
    reason = why_not()
    if reason:
        sys.exit(reason)
    made = image()
    print(made.rootfs, "was there" if made.build_seconds is None else f"built in {made.build_seconds:.0f} s")
