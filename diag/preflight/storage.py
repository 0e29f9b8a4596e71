"""Room, inodes and the right to write where CMD saves and where caches and temporary files go. Nothing is
written for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diag.knowledge.checkpoint_args import named_paths
from diag.launch.launchers.command import CommandError
from diag.launch.launchers.command.shell_script import is_computed
from diag.model import Record
from diag.model.observations import DiskSpace
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line, table
from diag.sources.storage import disk
from diag.text.errors import SourceUnavailable
from diag.text.units import format_bytes

_GIB = 1 << 30
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


def written_folder(path: str) -> WrittenFolder:
    """Raises SourceUnavailable."""
    there = Path(path).expanduser().absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    # Blocks kept back for root are not counted on: a container's root may often not use them.
    payload = {**disk.read(str(there), "save", os.geteuid() or None), "path": path}
    space = next(fact for fact in disk.parse(Record(disk.SOURCE, payload)) if isinstance(fact, DiskSpace))
    return WrittenFolder(path, there, space, _wrong(path, there, payload["read_only"]))


def _wrong(path: str, there: Path, read_only: bool) -> str:
    if read_only:
        return f"is on a file system that is mounted read-only ({there})"
    if there.is_symlink() and not there.exists():
        return f"is a link to {os.readlink(there)}, which is not there"
    if not there.is_dir():
        return f"is not a directory: {there} is a file"
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        new = "" if there == Path(path).expanduser().absolute() else " cannot create it: it"
        return f"cannot be written: user {os.geteuid()}{new} has no right to write in {there}"
    return ""


def check_disk(facts: LaunchFacts) -> Iterator[Line]:
    if facts.container is not None:
        yield line("storage.inside", what="disk", container=facts.container)
        return
    flag, path = _save_path(facts)
    if is_computed(path):
        yield line("storage.computed", flag=flag, path=path)
        return
    try:
        place = written_folder(path)
    except SourceUnavailable as error:
        yield line("storage.unavailable", error=error)
        return
    if place.wrong:
        by_flag, for_flag = (f" ({flag})", f" for {flag}") if flag else ("", "")
        wrong = place.wrong
        yield line("storage.not-writable", path=path, by_flag=by_flag, wrong=wrong, for_flag=for_flag)
        return
    needed, kept = _checkpoint(place, facts)
    key = _verdict(place, needed)
    has_default = facts.launch is not None and facts.launch.program in _DEFAULTS
    if key == "fits" and not flag and not has_default:
        key = "not-named" if facts.given else "no-command"
    elif key == "fits" and needed:
        key = "fits-checkpoint"
    by_flag = f" ({flag})" if flag else ""
    said = f"{format_bytes(place.free)} and {_inodes(place.space)} free in {path}{by_flag}"
    yield line(f"storage.disk-{key}", said=said, there=place.there, needed=format_bytes(needed))
    if key == "fits-checkpoint" and place.free < needed * (kept + 1 if kept else 3):
        unkept = "and none is deleted (no --save_total_limit)"
        how = f"and {kept} are kept while the next is written" if kept else unkept
        yield line("storage.few-checkpoints", count=place.free // needed, kept=how)
    if key not in ("not-named", "no-command"):
        yield from _kind(path, place, facts.nodes)


def _verdict(place: WrittenFolder, needed: int) -> str:
    inodes = place.space.available_inodes
    if inodes is not None and inodes < _FEW_INODES:
        return "no-inodes"
    if needed and place.free < needed:
        return "no-checkpoint-fits"
    return "little-room" if place.free < _GIB else "fits"


def _kind(path: str, place: WrittenFolder, nodes: int | None) -> Iterator[Line]:
    """What is worth knowing of its file system."""
    kind = place.space.file_system
    key = "network" if place.on_network else kind
    if key in ("tmpfs", "overlay", "network"):
        yield line(f"storage.on-{key}", path=path, kind=kind)
    if nodes and nodes > 1 and kind and not place.on_network:
        yield line("storage.not-shared", path=path, kind=kind, nodes=nodes)


# ms-swift 3.7-4.6: megatron_output/MODEL and output/MODEL
_DEFAULTS = {"megatron": "megatron_output", "swift": "output"}


def _save_path(facts: LaunchFacts) -> tuple[str, str]:
    """The flag ("" for a default) and the folder."""
    launch = facts.launch
    words = launch.words if launch is not None else facts.command.line
    named = [item for item in named_paths(words) if item.role == "save"]
    if named:
        return named[0].flag, named[0].path
    return "", _DEFAULTS.get(launch.program if launch is not None else "", ".")


def _checkpoint(place: WrittenFolder, facts: LaunchFacts) -> tuple[int, int]:
    """Bytes that one checkpoint takes there (0: not known) and how many are kept (0: all)."""
    launch = facts.launch
    if launch is None or facts.nodes is None:
        return 0, 0
    from diag.preflight.estimate import Machine, estimate  # much to load where there is no CMD

    try:
        needs = estimate(facts.command.argv, facts.inherited, machine=Machine(), with_advice=False)
    except (CommandError, ValueError, ArithmeticError):
        return 0, 0
    words = [word.replace("-", "_") for word in launch.words]
    at = words.index("__save_total_limit") + 1 if "__save_total_limit" in words else len(words)
    kept = launch.words[at] if at < len(words) else ""
    kept_count = int(kept) if kept.isdecimal() and len(kept) < 6 else 0
    return needs.checkpoint_bytes // (1 if place.on_network else facts.nodes), kept_count


def check_caches(facts: LaunchFacts) -> Iterator[Line]:
    if facts.container is not None:
        yield line("storage.inside", what="caches", container=facts.container)
        return
    fine: dict[str, int] = {}
    for name, path, least in _caches(facts.environment):
        given = name in facts.environment
        lines, free = _cache(name, path, least, given=given)
        if given and free is not None and name == "MODELSCOPE_CACHE":
            lines = [*lines, *_shared(path, facts.nodes)]
        yield from lines
        fine |= {name: free} if free is not None else {}
    if fine:
        said = f"{format_bytes(min(fine.values()))} or more free for {', '.join(fine)}"
        unseen = facts.command.environment_unseen
        yield line(f"storage.caches-{'unseen' if unseen else 'fit'}", said=said, unseen=unseen)


def _cache(name: str, path: str, least: int, *, given: bool) -> tuple[list[Line], int | None]:
    """What is to be reported of one folder, and the room in it where that is enough."""
    what = "temporary files" if name == "TMPDIR" else "caches"
    if is_computed(path):
        return [line("storage.cache-computed", what=what, name=name, path=path)], None
    said = f"{name}={path}" if given else f"{path} (the default of {name})"
    try:
        place = written_folder(path)
    except SourceUnavailable as error:
        return [line("storage.cache-unavailable", what=what, said=said, error=error)], None
    inodes, kind = place.space.available_inodes, place.space.file_system
    if place.wrong:
        # A default under a home directory that is not written to is a trouble only for who uses it.
        problem = line("storage.cache-not-writable", what=what, said=said, wrong=place.wrong, name=name)
        return [problem.as_note(unless=given or name == "TMPDIR")], None
    if place.free < least or (inodes is not None and inodes < _FEW_INODES):
        free, files = format_bytes(place.free), _inodes(place.space)
        values = {"free": free, "inodes": files, "said": said, "name": name}
        return [line("storage.cache-little-room", what=what, **values)], None
    if place.on_network and name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        values = {"said": said, "kind": kind, "name": name, "folder": name.partition("_")[0].lower()}
        return [line("storage.cache-shared", what=what, **values)], place.free
    return [], place.free


def _shared(path: str, nodes: int | None) -> Iterator[Line]:
    """ms-swift keeps preprocessed and packed data sets there, which each node makes for itself elsewhere."""
    place = written_folder(path)
    if nodes and nodes > 1 and place.space.file_system and not place.on_network:
        missing = "" if Path(path).is_dir() else "is not there yet and "
        values = {"missing": missing, "kind": place.space.file_system, "nodes": nodes}
        yield line("storage.cache-not-shared", path=path, **values)


def _caches(env: Mapping[str, str]) -> Iterator[tuple[str, str, int]]:
    """Variable, folder, and the least room."""
    home = env.get("HOME") or "~"
    cache, temporary = env.get("XDG_CACHE_HOME") or f"{home}/.cache", env.get("TMPDIR") or "/tmp"
    for name, (default, mebibytes) in table("storage")["caches"].items():
        folder = default.format(tmp=temporary, cache=cache, home=home)
        yield name, env.get(name) or folder, mebibytes << 20


def _inodes(space: DiskSpace) -> str:
    return "any number of files" if space.available_inodes is None else f"{space.available_inodes} files"
