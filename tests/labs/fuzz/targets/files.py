"""Readers of files that strangers wrote: recorders, core dumps, checkpoints, journals, bundles, whole folders
of evidence."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

from diag.engine.journal import SCHEMA, JournalReader
from diag.model import Record
from diag.sources.collectives import flight_recorder, plain_pickle
from diag.sources.gpu import cuda_coredump
from diag.sources.storage import checkpoint
from diag.text.errors import DiagError
from tests.labs.fuzz.targets.base import CAPTURES, Target, of_files, story, told

__all__ = ["TARGETS"]


def _pickle(data: bytes, home: Path) -> None:
    try:
        made = plain_pickle.loads(data)
    except ValueError:
        return
    assert isinstance(made, (dict, list, tuple, str, int, float, bool, type(None))), type(made)


def _recorder(data: bytes, home: Path) -> None:
    payload = flight_recorder.load_file(data)
    json.dumps(payload)
    if "failed" in payload:
        flight_recorder.explain(payload)
    told(Record(flight_recorder.SOURCE, payload, rank, "node0", 1010.0 + rank, 1010.0) for rank in (0, 1))


def _core(data: bytes, home: Path) -> None:
    place = home / "core.gpu-0.20"
    place.write_bytes(data)
    payload = cuda_coredump.load_file(place)
    json.dumps(payload)
    told([Record(cuda_coredump.SOURCE, payload, 0, "node0", 1010.0, 1010.0)])


@functools.cache
def _core_seeds() -> list[bytes]:
    whole = [gzip.decompress(path.read_bytes()) for path in sorted((CAPTURES / "gpu").glob("*.cudacore.gz"))]
    return [*(data[:64_000] for data in whole), *(data for data in whole if len(data) < 1 << 20)]


_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    ".metadata",
    "__0_0.distcp",
    "rng_state.pth",
    "latest",
    "latest_checkpointed_iteration.txt",
    "metadata.json",
)


def _checkpoint(data: bytes, home: Path) -> None:
    """Each file of a checkpoint that diag opens, with these bytes in it; `.metadata` is a pickle, which is
    never loaded."""
    folder = home / "checkpoint-5"
    folder.mkdir(exist_ok=True)
    for name in _FILES:
        (folder / name).write_bytes(data)
        (home / name).write_bytes(data)
    payload = checkpoint.CheckpointReader(str(home), "load").sample()
    json.dumps(payload)
    told([Record(checkpoint.SOURCE, payload, None, "node0", 1010.0, 1010.0)])


def _checkpoint_seeds() -> list[bytes]:
    import pickle

    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    ).encode()
    index = json.dumps(
        {"metadata": {"total_size": 8}, "weight_map": {"w": "model-00001-of-00002.safetensors"}}
    ).encode()
    return [
        len(header).to_bytes(8, "little") + header + b"\0" * 8,
        index,
        pickle.dumps({"storage": ["__0_0.distcp", "__1_0.distcp"]}, 2),
        b"PK\3\4" + b"\0" * 60 + b"PK\5\6" + b"\0" * 18,
        b"5",
        b"global_step5",
        b'{"sharded_backend": "torch_dist"}',
    ]


def _journal_lines() -> bytes:
    from tests.labs.fuzz.targets.base import payloads

    lines = [
        json.dumps({"schema": SCHEMA, "segment": 1}),
        *(json.dumps(record.to_json()) for record in story()),
    ]
    lines += [
        json.dumps({"at": 1010.0 + at, "source": source, "rank": 0, "payload": json.loads(text)})
        for source in ("exits", "shm", "proc", "disk")
        for at, text in enumerate(payloads(source, 2))
    ]
    return "\n".join([*lines, ""]).encode()


def _journal(data: bytes, home: Path) -> None:
    """As it lies on disk, and what would stand in it unpacked."""
    for stream in (data, gzip.compress(data, 1)):
        reader = JournalReader([])
        with contextlib.suppress(DiagError):
            for record in reader.read(io.BytesIO(stream), "journal"):
                json.dumps(record.to_json())


def _journal_seeds() -> list[bytes]:
    lines = _journal_lines()
    return [
        lines,
        gzip.compress(lines),
        gzip.compress(lines)[:-20],
        gzip.compress(lines[:900]) + gzip.compress(lines[900:]),
    ]


def _replay(path: Path) -> None:
    import argparse

    from diag.cli import replay as command

    said = io.StringIO()
    for json_too in (False, True):
        args = argparse.Namespace(
            paths=[path], json=json_too, lang="", rules=None, changes=False, serve=False, host=None, port=None
        )
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            contextlib.suppress(DiagError),
        ):
            command.run(args)
    assert not any(char in said.getvalue() for char in "\x00\x07\x1b\x9b"), (
        f"control characters: {said.getvalue()[:200]!r}"
    )


def _bundle(data: bytes, home: Path) -> None:
    """`diag replay` of an archive."""
    for name in ("b.tar", "b.tar.gz"):
        place = home / name
        place.write_bytes(data)
        _replay(place)
        place.unlink()


def _bundle_seeds() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz"):
        for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode=mode, format=form) as tar:  # type: ignore[call-overload]
                for name, data in (
                    ("dump.json", b"{}"),
                    ("journal-000001.jsonl.gz", gzip.compress(_journal_lines())),
                    ("x" * 150, b"y"),
                ):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
            found.append(out.getvalue())
    return found


def _folder(data: bytes, home: Path) -> None:
    """`diag replay` of a folder: {name: content}; a content that begins with -> is a link."""
    try:
        files = json.loads(data)
        wanted = [(str(name), str(content)) for name, content in files.items()][:60]
    except (ValueError, AttributeError, RecursionError):
        return
    place = home / "evidence"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        for name, content in wanted:
            with contextlib.suppress(OSError, ValueError):
                file = place / name.replace("/", "_").encode("utf-8", "replace").decode()
                if content.startswith("->"):
                    file.symlink_to(content[2:])
                elif file.parent == place:
                    file.write_bytes(content.encode("latin-1", "replace"))
        _replay(place)
    finally:
        shutil.rmtree(place)


def _folder_seeds() -> list[bytes]:
    found = []
    for scenario in ("data_hang", "rank_killed", "straggler", "cuda_oom"):
        files = {
            path.name: path.read_bytes()[:2500].decode("latin-1")
            for path in sorted((CAPTURES / "loose" / scenario).iterdir())
            if path.is_file()
        }
        found.append(json.dumps(files).encode())
    run = {
        "journal-000001.jsonl.gz": gzip.compress(_journal_lines()).decode("latin-1"),
        "run.json": '{"schema": "diag.run/1"}',
    }
    links = {
        "rank0.log": "->/dev/zero",
        "rank1.log": "->rank1.log",
        "pyspy_rank0.txt": "->/etc/passwd",
        "meta.json": "->..",
    }
    return [
        *found,
        json.dumps(run).encode(),
        json.dumps({**run, **links}).encode(),
        json.dumps(links).encode(),
    ]


TARGETS = (
    Target("pickle", "the reader of pickles of plain data", "bytes", of_files("fr/*_?"), _pickle),
    Target(
        "flight-recorder",
        "dumps of the Flight Recorder, pickle and JSON",
        "bytes",
        of_files("fr/*_?", "fr/*.json"),
        _recorder,
    ),
    Target("cuda-core", "core dumps of GPUs", "bytes", _core_seeds, _core),
    Target(
        "checkpoint-files",
        "headers of safetensors, indexes, `.metadata`, trackers, ends of zip files",
        "bytes",
        _checkpoint_seeds,
        _checkpoint,
    ),
    Target("journal", "journals: torn, packed, in pieces", "bytes", _journal_seeds, _journal),
    Target("journal-lines", "lines of journals", "text", lambda: [_journal_lines()], _journal),
    Target("bundle", "`diag replay` of an archive", "bytes", _bundle_seeds, _bundle),
    Target("folder", "`diag replay` of a folder of evidence, with links", "json", _folder_seeds, _folder),
)
