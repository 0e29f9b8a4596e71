"""The containers' image, in build/pods: a small Debian, built once for each recipe (`image.sh`). diag, torch
and the Python that they belong to are mounted from this machine, read-only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
BUILD = REPOSITORY / "build" / "pods"
_RECIPE = Path(__file__).with_name("image.sh")
_TOOLS = ("podman", "runc", "catatonit", "debootstrap", "unshare")


def why_not() -> str:
    """Why this machine cannot run the pods; empty when it can."""
    missing = [
        tool for tool in _TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None
    ]
    if missing:
        return f"{', '.join(missing)} not installed: `make test-cluster` as root installs them (Debian)"
    if os.geteuid() != 0:
        return "podman is set up for root here"
    if sys.base_prefix in ("/usr", "/"):
        return f"the Python of this environment is the system's ({sys.base_prefix}), which cannot be mounted over a container's"
    return ""


def tar() -> Path:
    """Takes a minute or two the first time. Raises CalledProcessError; the recipe's last words are on stderr."""
    folder = BUILD / name()
    if not (folder / "image.tar").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # In a mount namespace of its own: what debootstrap mounts is gone with it, however it ends.
        subprocess.run(["unshare", "--mount", "sh", str(_RECIPE), str(folder)], check=True)
    return folder / "image.tar"


def name() -> str:
    return hashlib.sha256(_RECIPE.read_bytes()).hexdigest()[:12]


def mounts() -> tuple[Path, ...]:
    """What a container needs to run this environment's Python: the same paths as here."""
    places = {REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)}
    return tuple(
        sorted(
            place
            for place in places
            if not any(place != other and place.is_relative_to(other) for other in places)
        )
    )
