"""A training loop with a DataLoader; the argument says what goes wrong while data is read."""

import ctypes
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, case: str, rank: int) -> None:
        self.case = case
        self.rank = rank

    def __len__(self) -> int:
        return 512 if self.case == "files" else 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        size = 1 << 20 if self.case in {"shm", "shm-fs"} else 16
        if self.rank == 1 and index == 22:
            self.read(index)
        if self.case == "ragged":
            size = 10 + index % 3
        return {"input_ids": torch.full((size,), index)}

    def read(self, index: int) -> None:
        if self.case == "key":
            record = {"prompt": "2 + 2 =", "answer": "4"}
            print(len(record["chosen"]))
        elif self.case == "json":
            json.loads('{"prompt": "2 + 2 =", "chosen": "4", "rejec')
        elif self.case == "file":
            open("data/shard-00022.bin", "rb").close()
        elif self.case == "pickle":
            pickle.loads(b"\x80\x04\x95\x10")
        elif self.case == "utf8":
            b"\xff\xfe2 + 2".decode("utf-8")
        elif self.case == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.case == "segv":
            ctypes.string_at(0)
        elif self.case == "exit":
            os._exit(7)
        elif self.case == "slow":
            time.sleep(60)
        elif self.case == "memory":
            torch.empty(1 << 44)
        elif self.case == "cuda":
            torch.zeros(1, device="cuda")


class Broken(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(8)
        raise OSError(5, "Input/output error", "/mnt/datasets/train/part-0001.parquet")


def main() -> None:
    case = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset: Dataset = Broken() if case == "io" else Samples(case, rank)
    workers = {"files": 8, "no-workers": 0}.get(case, 2)
    context = "spawn" if case == "spawn" else None
    collate = (lambda batch: batch) if case == "spawn" else None
    if case == "shm-fs":
        torch.multiprocessing.set_sharing_strategy("file_system")
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=workers,
        timeout=5 if case == "slow" else 0,
        multiprocessing_context=context,
        collate_fn=collate,
        prefetch_factor=4,
    )
    kept = []
    for number, batch in enumerate(loader):
        if case == "files":
            kept.append(batch)
        loss = torch.tensor([1.0 / (number + 1)])
        dist.all_reduce(loss)
        if rank == 0 and number % 2 == 0:
            print(f"{{'loss': {loss.item():.4f}, 'step': {number}}}", flush=True)
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
