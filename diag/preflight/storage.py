"""Room, inodes and the right to write where CMD saves and where caches and temporary files go. Nothing is
written for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.knowledge.checkpoint_args import named_paths
from diag.launch.launchers.command import Command, Container
from diag.launch.launchers.command.shell_script import is_computed
from diag.model import Record
from diag.model.observations import DiskSpace
from diag.preflight.estimate.errors import EstimateError
from diag.preflight.estimate.estimate import estimate
from diag.preflight.estimate.machine import Machine
from diag.preflight.launch_facts import LaunchFacts, launch_facts
from diag.preflight.line import Line
from diag.sources.storage import disk
from diag.text.units import format_bytes

_GIB = 1 << 30
_MIB = 1 << 20
_FEW_INODES = 1000
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "virtiofs", "wekafs")


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """A folder that will be written to; `there` is the nearest one above that exists. `wrong` says why it
    cannot be written."""

    path: str
    there: Path
    space: DiskSpace
    wrong: str = ""

    @property
    def on_network(self) -> bool:
        return self.space.file_system.startswith(_NETWORK)

    @property
    def free(self) -> int:
        quota = self.space.quota_bytes
        return self.space.available_bytes if quota is None else min(quota, self.space.available_bytes)


def look(path: str) -> WrittenFolder:
    """Raises disk.DiskUnavailable."""
    there = Path(path).expanduser().absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    # Blocks kept back for root are not counted on: a container's root may often not use them.
    payload = {**disk.read(str(there), "save", os.geteuid() or None), "path": path}
    space = next(fact for fact in disk.parse(Record(disk.SOURCE, payload)) if isinstance(fact, DiskSpace))
    return WrittenFolder(path, there, space, _wrong(path, there, payload["read_only"]))


_LOOK_INSIDE = "diag doctor inside the container"


def _inside(container: Container) -> str:
    return f"CMD writes inside the container that it makes of {container.image}"


def _wrong(path: str, there: Path, read_only: bool) -> str:
    if read_only:
        return f"is on a file system that is mounted read-only ({there})"
    if there.is_symlink() and not there.exists():
        return f"is a link to {os.readlink(there)}, which is not there"
    if not there.is_dir():
        return f"is not a directory: {there} is a file"
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        new = "" if there == Path(path).expanduser().absolute() else " may not make it: there it"
        return f"cannot be written: user {os.geteuid()}{new} has no right to write in {there}"
    return ""


def check_disk(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Line]:
    env = os.environ if environment is None else environment
    facts = launch_facts(command, env)
    if facts.command.container is not None:
        yield Line("disk", "not checked", _inside(facts.command.container), _LOOK_INSIDE)
        return
    launch = facts.launch
    flag, path = _save_path(facts)
    if is_computed(path):
        yield Line(
            "disk",
            "not checked",
            f"{flag} {path}: only the shell that starts it knows",
            f"{flag} with its value",
        )
        return
    try:
        place = look(path)
    except disk.DiskUnavailable as error:
        yield Line("disk", "not checked", error.reason, error.remedy)
        return
    said = (
        f"{format_bytes(place.free)} and {_inodes(place.space)} free in {path}{f' ({flag})' if flag else ''}"
    )
    if place.wrong:
        yield Line(
            "disk",
            "problem",
            f"{path}{f' ({flag})' if flag else ''} {place.wrong}",
            f"another directory{f' for {flag}' if flag else ''}, or mount or give it writable",
            "checkpoint-write-error",
            "critical",
        )
        return
    needed, kept = _checkpoint(command, env, place, facts)
    few = place.space.available_inodes is not None and place.space.available_inodes < _FEW_INODES
    if few:
        yield Line(
            "disk",
            "problem",
            said,
            f"no inodes are left for new files: delete many small ones there (`df -i {place.there}`), or "
            "choose another output directory",
            "disk-full",
            "critical",
        )
    elif needed and place.free < needed:
        yield Line(
            "disk",
            "problem",
            f"{said}, and one checkpoint of CMD takes about {format_bytes(needed)}",
            "free space or choose another output directory; --no_save_optim true (Megatron) or --save_only_model true leave out "
            "the optimizer",
            "disk-full",
            "critical",
        )
    elif place.free < _GIB:
        yield Line(
            "disk",
            "problem",
            said,
            "checkpoints will not fit: free space or choose another output directory",
            "disk-full",
        )
    elif not flag and not _has_default(launch):
        what = (
            "CMD names no directory that it saves in" if facts.given else "where CMD will save is not known"
        )
        yield Line("disk", "not checked", f"{what}; {said}", "" if facts.given else "diag doctor -- CMD")
        return
    else:
        yield Line(
            "disk",
            "ok",
            said + (f"; one checkpoint of CMD takes about {format_bytes(needed)}" if needed else ""),
        )
        if needed and place.free < needed * (kept + 1 if kept else 3):
            yield Line(
                "disk",
                "note",
                f"there is room for {place.free // needed} checkpoints"
                + (
                    f", and {kept} are kept while the next is written"
                    if kept
                    else ", and none is deleted (no --save_total_limit)"
                ),
                "--save_total_limit with a number that fits, or larger --save_steps (--save_interval)",
                "disk-full",
            )
    yield from _kind(path, place, facts.nodes)


def _kind(path: str, place: WrittenFolder, nodes: int | None) -> Iterator[Line]:
    """What is worth knowing of its file system."""
    kind = place.space.file_system
    if kind == "tmpfs":
        yield Line(
            "disk",
            "note",
            f"{path} is in memory (tmpfs): checkpoints there count as the container's memory and are gone with it",
            "a directory on a disk or a volume",
        )
    elif kind == "overlay":
        yield Line(
            "disk",
            "note",
            f"{path} is in the container's own layer: checkpoints there are gone with the container",
            "a volume: docker -v /data:/data, Kubernetes: a PersistentVolumeClaim",
        )
    elif place.on_network:
        yield Line(
            "disk",
            "note",
            f"{path} is on {kind}: its quota is kept by the server and not seen here, and what one node writes may take "
            "seconds to be seen by another",
        )
    if nodes and nodes > 1 and kind and not place.on_network:
        yield Line(
            "disk",
            "note",
            f"{path} is on {kind} of this node, and the job has {nodes} nodes: each would hold a part of each checkpoint",
            "one directory that all nodes share (NFS, Lustre, a ReadWriteMany volume)",
        )


# ms-swift 3.7-4.6: megatron_output/MODEL and output/MODEL
_DEFAULTS = {"megatron": "megatron_output", "swift": "output"}


def _has_default(launch: Command | None) -> bool:
    return launch is not None and launch.program in _DEFAULTS


def _save_path(facts: LaunchFacts) -> tuple[str, str]:
    """The flag ("" for a default) and the folder."""
    launch = facts.launch
    words = launch.words if launch is not None else facts.command.line
    named = [item for item in named_paths(words) if item.role == "save"]
    if named:
        return named[0].flag, named[0].path
    return "", _DEFAULTS.get(launch.program if launch is not None else "", ".")


def _checkpoint(
    command: Sequence[str], env: Mapping[str, str], place: WrittenFolder, facts: LaunchFacts
) -> tuple[int, int]:
    """Bytes that one checkpoint takes there (0: not known) and how many are kept (0: all)."""
    launch = facts.launch
    if launch is None or facts.nodes is None:
        return 0, 0
    try:
        told = estimate(command, env, machine=Machine(), with_advice=False)
    except (EstimateError, ValueError, ArithmeticError):
        return 0, 0
    size = told.checkpoint_bytes
    if not place.on_network:
        size //= facts.nodes
    words = launch.words
    kept = next(
        (
            words[at + 1]
            for at, word in enumerate(words[:-1])
            if word.replace("-", "_") == "__save_total_limit"
        ),
        "",
    )
    return size, int(kept) if kept.isdecimal() and len(kept) < 6 else 0


def check_caches(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Line]:
    env = os.environ if environment is None else environment
    facts = launch_facts(command, env)
    if facts.command.container is not None:
        yield Line("caches", "not checked", _inside(facts.command.container), _LOOK_INSIDE)
        return
    env = facts.environment
    fine: list[str] = []
    free = None
    for name, path, least in _caches(env):
        what = "temporary files" if name == "TMPDIR" else "caches"
        if is_computed(path):
            yield Line(what, "not checked", f"{name}={path}: only the shell that starts it knows")
            continue
        said = f"{name}={path}" if name in env else f"{path} (the default of {name})"
        try:
            place = look(path)
        except disk.DiskUnavailable as error:
            yield Line(what, "not checked", f"{said}: {error.reason}", error.remedy)
            continue
        inodes = place.space.available_inodes
        if place.wrong:
            # A default under a home directory that nobody writes to is a trouble only for who uses it.
            yield Line(
                what,
                "problem" if name in env or name == "TMPDIR" else "note",
                f"{said} {place.wrong}",
                f"{name}=DIR on a file system that can be written",
                "disk-full" if name in env or name == "TMPDIR" else "",
            )
        elif place.free < least or (inodes is not None and inodes < _FEW_INODES):
            yield Line(
                what,
                "problem",
                f"{format_bytes(place.free)} and {_inodes(place.space)} free in {said}",
                f"free space there, or {name}=DIR on a larger file system",
                "disk-full",
            )
        else:
            fine.append(name)
            free = place.free if free is None else min(free, place.free)
            if name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR") and place.on_network:
                yield Line(
                    what,
                    "note",
                    f"{said} is on {place.space.file_system}: kernels are compiled into it by all ranks at once, which is slow "
                    "there and may end in `Stale file handle`",
                    f"{name}=/tmp/{name.partition('_')[0].lower()}, on each node's own disk",
                )
    if fine and free is not None:
        said = f"{format_bytes(free)} or more free for {', '.join(fine)}"
        unseen = facts.command.environment_unseen
        yield Line(
            "caches",
            "not checked" if unseen else "ok",
            f"{said}, unless CMD sets others: {unseen}" if unseen else said,
        )


def _caches(env: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """Variable, folder, and the least room: models and datasets are large, compiled kernels are not."""
    home = env.get("HOME") or "~"
    cache = env.get("XDG_CACHE_HOME") or f"{home}/.cache"
    temporary = env.get("TMPDIR") or "/tmp"
    return [
        ("TMPDIR", temporary, 256 * _MIB),
        ("HF_HOME", env.get("HF_HOME") or f"{cache}/huggingface", _GIB),
        ("MODELSCOPE_CACHE", env.get("MODELSCOPE_CACHE") or f"{home}/.cache/modelscope", _GIB),
        ("TORCHINDUCTOR_CACHE_DIR", env.get("TORCHINDUCTOR_CACHE_DIR") or temporary, 256 * _MIB),
        ("TRITON_CACHE_DIR", env.get("TRITON_CACHE_DIR") or f"{home}/.triton", 256 * _MIB),
    ]


def _inodes(space: DiskSpace) -> str:
    return "any number of files" if space.available_inodes is None else f"{space.available_inodes} files"
