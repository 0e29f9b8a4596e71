"""A folder of checkpoints as it lies on disk: names, sizes, the few bytes that tell whether a file is whole.

`CheckpointReader` reads (bounded in entries, bytes and opened files; a look never follows a symbolic link
within the folder), `parse` understands; what makes each kind whole is in `checkpoint_kinds`.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import CheckpointsSeen, Observation, Unparsed
from diag.sources.host.job_files import Files
from diag.sources.payload import guarded, sequence, texts
from diag.sources.storage.checkpoint_kinds import read_folder
from diag.text.errors import SourceUnavailable

SOURCE = "checkpoint"
OURS = Files()

# Megatron iter_0000500 and release; HF Trainer and ms-swift checkpoint-500 (and -merged); DeepSpeed
# global_step500; verl global_step_500
_CHECKPOINT = re.compile(
    r"(?:iter_\d{1,9}|checkpoint-\d{1,9}(?:-merged)?|global_step_?\d{1,9}|release)\Z", re.ASCII
)
# ms-swift puts each run into a folder of its own, v0-20261121-194515, unless --add_version false
_VERSION = re.compile(r"v\d{1,6}-\d{8}-\d{6}\Z", re.ASCII)
# Megatron-LM; DeepSpeed; ms-swift 4.6 (a symbolic link)
TRACKERS = ("latest_checkpointed_iteration.txt", "latest", "last-checkpoint")

MOST_ENTRIES = 20_000  # of one look, listed or only counted
_MOST_LISTED = 4096  # files named in a payload: those of the newest checkpoints
_MOST_FOLDERS = 64
_MOST_VERSIONS = 2000
MOST_HEADS = 256  # the first look at 256 files costs 10 ms
_DEPTH = 3  # checkpoint-4/iter_0000004/mp_rank_00
_LARGEST_HEADER = 4 << 20
_LARGEST_INDEX = 8 << 20
_ZIP_TAIL = 22  # the end record of a zip file without a comment, as torch.save writes it
_NAMES = re.compile(rb"__\d{1,7}_\d{1,7}\.distcp")


def version_folders(path: str, since: float, files: Files = OURS) -> list[str]:
    """Folders of runs of ms-swift below its --output_dir that were changed after `since`, newest first.
    Raises OSError."""
    found: list[tuple[float, str]] = []
    with files.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST_VERSIONS:
                break
            if _VERSION.match(entry.name) and entry.is_dir(follow_symlinks=False):
                changed = entry.stat(follow_symlinks=False).st_mtime
                if changed >= since:
                    found.append((changed, f"{path}/{entry.name}"))
    return [path for _, path in sorted(found, reverse=True)]


@dataclass(slots=True)
class _Folder:
    path: str
    name: str
    changed: float = 0.0
    count: int = 0
    size: int = 0
    empty: int = 0
    files: list[tuple[str, int, int]] = field(default_factory=list)  # relative name, size, mtime in ns
    whole: bool = True  # every entry was seen


class CheckpointReader:
    """Reads one folder repeatedly; the heads of files that have not changed are not read twice."""

    def __init__(self, root: str, role: str = "save", flag: str = "") -> None:
        self.root = root
        self._role = role
        self._flag = flag
        self._heads: dict[tuple[str, int, int], Payload] = {}

    def sample(self, most_heads: int = MOST_HEADS, files: Files = OURS) -> Payload:
        """`most_heads`: files opened in this look; the others are read in the next ones. Raises
        SourceUnavailable."""
        payload = {"root": self.root, "role": self._role, "flag": self._flag}
        try:
            if not stat.S_ISDIR(files.stat(self.root).st_mode):
                raise SourceUnavailable(
                    f"{_shown(self.root)} is not a directory", "give a directory to save to"
                )
            folders, tracker = self._list(files)
        except FileNotFoundError:
            return {**payload, "exists": False, "tracker": None, "folders": []}
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            why = getattr(error, "strerror", None) or str(error)
            raise SourceUnavailable(
                f"{_shown(self.root)} cannot be read: {why}",
                "run diag as the user that owns the job, on a node that has it mounted",
            ) from error
        read = [most_heads]
        heads_before, self._heads = self._heads, {}
        listed = 0
        shown: list[Payload] = []
        for folder in sorted(folders, key=lambda folder: (folder.changed, folder.name), reverse=True)[
            :_MOST_FOLDERS
        ]:
            listed += len(folder.files)
            named = folder.whole and listed <= _MOST_LISTED
            shown.append(self._payload(files, folder, named, heads_before, read))
        return {**payload, "exists": True, "tracker": tracker, "folders": shown[::-1]}

    # -- listing

    def _list(self, files: Files) -> tuple[list[_Folder], Payload]:
        """All folders that look like checkpoints, or the root itself where it is one; and what the tracker
        says."""
        budget = [MOST_ENTRIES]
        folders: list[_Folder] = []
        names: set[str] = set()
        with files.scandir(self.root) as entries:
            for entry in entries:
                budget[0] -= 1
                if budget[0] <= 0:
                    break
                names.add(entry.name)
                if _CHECKPOINT.match(entry.name) and entry.is_dir(follow_symlinks=False):
                    folders.append(_Folder(f"{self.root}/{entry.name}", entry.name))
        # ms-swift's checkpoint-4 has an iter_0000004 in it; HF's output_dir may hold a model beside its
        # checkpoints
        if _CHECKPOINT.match(PurePath(self.root).name) or (not folders and _is_one_itself(names)):
            own = _Folder(self.root, "")
            _walk(files, own, budget)
            return [own], None
        for folder in sorted(folders, key=lambda folder: _number(folder.name), reverse=True):
            _walk(files, folder, budget)
        return folders, next(
            (found for name in TRACKERS if name in names and (found := _tracker(files, self.root, name))),
            None,
        )

    # -- the few bytes that tell

    def _payload(
        self,
        files: Files,
        folder: _Folder,
        named: bool,
        before: Mapping[tuple[str, int, int], Payload],
        read: list[int],
    ) -> Payload:
        payload: dict[str, Any] = {
            "name": folder.name,
            "changed": folder.changed,
            "count": folder.count,
            "bytes": folder.size,
            "empty": folder.empty,
        }
        if not named:
            return payload
        heads: dict[str, Payload] = {}
        # What names other files comes first, then the others in the order of the folder.
        kinds = sorted(
            (kind in ("zip", "safetensors"), place)
            for place, file in enumerate(folder.files)
            if (kind := _head_kind(file[0])) is not None
        )
        for _, place in kinds:
            name, size, changed = folder.files[place]
            kind = _head_kind(name) or ""
            key = (f"{folder.path}/{name}", size, changed)
            head = before.get(key)
            if head is None and read[0] > 0:
                read[0] -= 1
                head = _head(files, key[0], kind, size)
            if head is not None:
                self._heads[key] = head
                if head:  # nothing is wrong with the others: a thousand of them need no place in the journal
                    heads[name] = head
        return {**payload, "files": [[_text(name), size] for name, size, _ in folder.files], "heads": heads}


def _walk(files: Files, folder: _Folder, budget: list[int]) -> None:
    """Counts the contents of a checkpoint. Files that vanish meanwhile (rotation) are ignored."""
    below = [("", 0)]
    while below:
        prefix, depth = below.pop()
        try:
            with files.scandir(f"{folder.path}/{prefix}") as entries:
                for entry in entries:
                    budget[0] -= 1
                    if budget[0] <= 0:
                        folder.whole = False
                        return
                    _take(files, folder, entry, prefix, depth, below)
        except FileNotFoundError:
            continue
        except OSError:
            folder.whole = False


def _take(  # noqa: PLR0917 - one caller
    files: Files,
    folder: _Folder,
    entry: os.DirEntry[str],
    prefix: str,
    depth: int,
    below: list[tuple[str, int]],
) -> None:
    try:
        if entry.is_dir(follow_symlinks=False):
            if depth + 1 < _DEPTH:
                below.append((f"{prefix}{entry.name}/", depth + 1))
            else:
                folder.whole = False
            return
        # Shards may be links into a cache of blobs; a link that loops or leads nowhere is a file that is not
        # there.
        path = f"{folder.path}/{prefix}{entry.name}"
        found = files.stat(path) if entry.is_symlink() else entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError:
        folder.whole = False
        return
    if not stat.S_ISREG(found.st_mode):
        return
    folder.count += 1
    folder.size += found.st_size
    folder.empty += found.st_size == 0
    folder.changed = max(folder.changed, found.st_mtime)
    if len(folder.files) < _MOST_LISTED:
        folder.files.append((f"{prefix}{entry.name}", found.st_size, found.st_mtime_ns))
    else:
        folder.whole = False


def _is_one_itself(names: set[str]) -> bool:
    """A path to one checkpoint (--model, --resume_from_checkpoint), not to a folder of them."""
    if any(name.endswith((".safetensors", ".distcp", ".safetensors.index.json")) for name in names):
        return True
    if names & {
        ".metadata",
        "common.pt",
        "pytorch_model.bin",
        "trainer_state.json",
        "pytorch_model.bin.index.json",
    }:
        return True
    return any(name.startswith("mp_rank_") for name in names)


def _tracker(files: Files, root: str, name: str) -> Payload | None:
    path = f"{root}/{name}"
    try:
        return [name, _text(PurePath(files.readlink(path)).name)]
    except OSError:  # no link
        pass
    try:
        return [name, _text(files.read(path, 200).decode("utf-8", "backslashreplace").strip())]
    except OSError:
        return None


def _number(name: str) -> int:
    digits = re.search(r"\d{1,9}", name)
    return int(digits[0]) if digits else -1


def _head_kind(name: str) -> str | None:
    base = name.rpartition("/")[2]
    if base.endswith(".safetensors"):
        return "safetensors"
    if base.endswith((".distcp", ".pt", ".pth", ".bin")):
        return "zip"
    if base.endswith(".index.json"):
        return "index"
    if base == ".metadata":
        return "metadata"
    return "text" if base in ("latest_checkpointed_iteration.txt", "latest", "metadata.json") else None


def _head(files: Files, path: str, kind: str, size: int) -> Payload | None:
    """What is wrong with a file, or which others it names; None where it cannot be read: that is no proof
    of damage."""
    try:
        if kind in _HEADS:
            return _HEADS[kind](files, path, size)
        return {"text": _text(files.read(path, 1000).decode("utf-8", "backslashreplace").strip())}
    except OSError:
        return None


def _metadata(files: Files, path: str, size: int) -> Payload | None:
    if size > _LARGEST_INDEX:
        return None
    names = {name.decode() for name in _NAMES.findall(files.read(path, size))}
    return {"names": sorted(names)[:_MOST_LISTED]}


def _zip(files: Files, path: str, size: int) -> Payload:
    """Only what torch.save wrote as zip: the old format (first bytes 8002) has no end to look for, and may
    end in zeros."""
    first, last = files.read(path, 4), files.read(path, _ZIP_TAIL, max(0, size - _ZIP_TAIL))
    if size and not first.strip(b"\0") and not last.strip(b"\0"):
        return {"bad": "begins and ends with zeros"}
    cut_off = first == b"PK\3\4" and not last.startswith(b"PK\5\6")
    return {"bad": "cut off: no end of a zip file"} if cut_off else {}


def _safetensors(files: Files, path: str, size: int) -> Payload | None:
    """https://github.com/huggingface/safetensors: 8 bytes of little-endian length, so much JSON, then the
    tensors to the end."""
    first = files.read(path, 8)
    if len(first) < 8:
        return {"bad": "shorter than its header"}
    length = int.from_bytes(first, "little")
    if length > size - 8 and length < 100_000_000:
        return {"bad": "shorter than its header"}
    if length == 0 or length > size - 8:
        return {"bad": "no safetensors header"}
    if length > _LARGEST_HEADER:
        return None
    try:
        header = json.loads(files.read(path, length, 8))
        ends = [value["data_offsets"][1] for name, value in header.items() if name != "__metadata__"]
        needs = 8 + length + max((int(end) for end in ends), default=0)
        return {} if needs == size else {"needs": needs}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return {"bad": "no safetensors header"}


def _index(files: Files, path: str, size: int) -> Payload | None:
    if size > _LARGEST_INDEX:
        return None
    try:
        names = sorted(set(json.loads(files.read(path, size))["weight_map"].values()))
        return {"names": [_text(str(name)) for name in names][:_MOST_LISTED]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {"bad": "no shard index"}


_HEADS: dict[str, Callable[[Files, str, int], Payload | None]] = {
    "safetensors": _safetensors,
    "zip": _zip,
    "metadata": _metadata,
    "index": _index,
}


def _text(name: str) -> str:
    """Names are bytes to Linux; ones that are no UTF-8 come as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(path: str) -> str:
    return repr(path)[1:-1] if not path.isprintable() else path


# --- understanding it


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    """One CheckpointsSeen."""
    payload = record.payload
    root, entries = payload["root"], payload["folders"]
    if not isinstance(root, str) or not isinstance(entries, list):
        raise TypeError("no folder of checkpoints")
    folders = []
    for entry in entries:
        folder = read_folder(root, entry)
        if folder is None:
            yield Unparsed(record.rank, SOURCE, "a checkpoint without its numbers", str(entry)[:200])
        else:
            folders.append(folder)
    tracker = texts(list(sequence(payload.get("tracker"))), 1000) or ()
    yield CheckpointsSeen(
        record.rank,
        root,
        tuple(folders),
        (tracker[0], tracker[1]) if len(tracker) == 2 else None,
        record.read_at,
        role="load" if payload.get("role") == "load" else "save",
        exists=payload.get("exists") is not False,
        flag=str(payload.get("flag") or ""),
    )
