"""Containers as far as RDMA goes: the machine's own files in a root of their own, with some of them left out."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.vm.guest.shell import sh

_BELOW = Path("/containers")


class Container:
    """`command` puts what runs in it before a program. /sys and /proc are the machine's, /dev has what every
    container has."""

    def __init__(self, name: str, without: tuple[str, ...], shared: tuple[str, ...] = ()) -> None:
        """`without`: files (patterns of a shell) that are not in it; `shared`: folders that are the machine's
        own."""
        self.root = _BELOW / name / "root"
        layers = _BELOW / name / "layers"
        for folder in (self.root, layers):
            folder.mkdir(parents=True)
        sh(f"""
        mount -t tmpfs layers {layers}
        mkdir {layers}/upper {layers}/work
        mount -t overlay overlay -o lowerdir=/,upperdir={layers}/upper,workdir={layers}/work {self.root}
        mount -t proc proc {self.root}/proc
        mount -t sysfs sys {self.root}/sys
        mount -t tmpfs dev {self.root}/dev
        cp -a /dev/null /dev/zero /dev/random /dev/urandom /dev/infiniband {self.root}/dev/
        mkdir {self.root}/dev/shm
        mount -t tmpfs shm {self.root}/dev/shm
        """)
        for folder in shared:
            sh(f"mkdir -p {folder} {self.root}{folder}; mount --bind {folder} {self.root}{folder}")
        for pattern in without:
            sh(f"rm -r {self.root}{pattern}")

    @property
    def command(self) -> list[str]:
        return ["chroot", str(self.root)]

    def remove(self) -> None:
        sh(f"umount -R -l {self.root}; umount -l {self.root.parent}/layers")
        shutil.rmtree(self.root.parent)
