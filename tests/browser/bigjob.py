"""A journal of very many ranks, made of a recorded hang of four: the same record shapes and stacks, one
culprit among all."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["HOST", "RECORDED", "many_ranks", "records_of"]

# Four ranks on H200s (TP 2, PP 2, EP 2), the DataLoader worker of rank 2 stands still:
# tests/captures/gpu-drills/README.md.
RECORDED = Path(__file__).parents[1] / "captures/gpu-drills/data-hang-TP2-PP2-EP2"
HOST = "gpu-node-{}"
_CULPRIT, _WORLD = 2, 4
_PER_NODE = 8
_STILL_SECONDS = 55.0  # into the recording: the job stands since then
_OF_RANK = ("proc", "remote_stack")
# Of a rank that waits this much is kept: its own process and its main thread, from time to time before it
# stands.
_EVERY_SECONDS, _EVERY_SECONDS_STILL = 20.0, 1.9
_NOT_KEPT = ("flight_recorder", "nccl_ras", "estimate")  # they tell of groups of four ranks


def records_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal, as they stand there."""
    for path in sorted(folder.glob("journal-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from (record for record in map(json.loads, file) if "source" in record)


def many_ranks(folder: Path, nodes: int, culprit: int) -> Path:
    """Write a journal of `nodes` x 8 ranks, in which `culprit` is held by its DataLoader worker. Returns
    `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "journal-000001.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as file:
        file.write('{"schema":"diag.journal/1","segment":1}\n')
        for line in _lines(list(records_of(RECORDED)), nodes * _PER_NODE, culprit):
            file.write(line + "\n")
    return folder


def _lines(records: list[dict[str, Any]], world: int, culprit: int) -> Iterator[str]:
    pids = {record["rank"]: record["payload"]["pid"] for record in records if record["source"] == "proc"}
    for record in _thinned(records, pids):
        rank = record["payload"]["placement"]["rank"] if _is_found(record) else record.get("rank")
        if rank is None:
            yield json.dumps(record)
            continue
        text = json.dumps(record)
        if rank == _CULPRIT:
            yield _as(text, rank, culprit, world)
            continue
        # The first pipeline stage has the first half of the ranks: as ranks 0 and 1 there, the rest as rank
        # 3.
        for number in range(rank, world // 2, 2) if rank < _CULPRIT else range(world // 2, world):
            if number != culprit:
                yield _as(text, rank, number, world)


def _is_found(record: dict[str, Any]) -> bool:
    return record["source"] == "run" and record["payload"]["event"] == "rank"


def _thinned(records: Iterable[dict[str, Any]], pids: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Without what would only repeat itself: a thousand ranks recorded for a minute are a gigabyte of text."""
    began = None
    last: dict[tuple[str, int], float] = {}
    for record in records:
        at = record["at"]
        began = at if began is None else began
        rank, source = record.get("rank"), record["source"]
        if source in _NOT_KEPT or (source == "run" and record["payload"]["event"] == "asked"):
            continue
        if rank is not None and rank != _CULPRIT and source != "run":
            still = at - began > _STILL_SECONDS
            wanted = _EVERY_SECONDS_STILL if still else _EVERY_SECONDS
            if source not in _OF_RANK or record["payload"].get("pid") != pids[rank]:
                continue
            if at - last.get((source, rank), 0.0) < wanted:
                continue
            last[source, rank] = at
            if "children" in record["payload"]:
                record["payload"]["children"] = []  # thirty a rank, all idle
        yield record


def _as(text: str, rank: int, number: int, world: int) -> str:
    """The record of `rank` as that of `number`, on the node that has it."""
    node, local = divmod(number, _PER_NODE)
    text = text.replace(f'"rank": {rank}', f'"rank": {number}').replace(
        f'"local_rank": {rank}', f'"local_rank": {local}'
    )
    text = text.replace(f'"world_size": {_WORLD}', f'"world_size": {world}').replace(
        '"node_rank": 0', f'"node_rank": {node}'
    )
    text = text.replace(f'"local_world_size": {_WORLD}', f'"local_world_size": {_PER_NODE}')
    told = {
        "RANK": number,
        "LOCAL_RANK": local,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": _PER_NODE,
        "GROUP_RANK": node,
    }
    text = re.sub(rf'"({"|".join(told)})": "\d+"', lambda found: f'"{found[1]}": "{told[found[1]]}"', text)
    text = re.sub(
        r'"start_ticks": (\d+)', lambda found: f'"start_ticks": {int(found[1]) + number}', text
    )  # its own process
    return re.sub(r'"host": "gpu-node-\d+"', f'"host": "{HOST.format(node)}"', text)
