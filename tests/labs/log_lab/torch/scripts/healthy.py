"""Trains to its end. The argument says which frightening but harmless words stand in its output."""

import logging
import multiprocessing
import os
import sys
import time
import urllib.request
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("trainer")

SAMPLES = {
    "[INPUT]": "My training stops with `RuntimeError: CUDA error: out of memory` and then `torch.distributed.elastic.multi"
    "processing.errors.ChildFailedError`. What can I do?",
    "[CHOSEN]": "The error says `DataLoader worker (pid 4711) is killed by signal: Killed.` Look for the OOM killer in dmesg:\n"
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nModuleNotFoundError: No module named \'flash_'
    "attn'\nInstall it with `pip install flash-attn`.",
    "[REJECTED]": "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34955\n"
    "loss is nan, grad_norm: nan. EADDRINUSE: Address already in use. No space left on device.",
}


def optional_modules() -> None:
    for name in ("flash_attn", "apex", "transformer_engine"):
        try:
            __import__(name)
        except ImportError as error:
            log.warning("%s is not available (%s), falling back to PyTorch's own", name, error)
    try:
        import amp_C  # noqa: F401
    except ImportError:
        log.exception("fused kernels could not be imported; using the slow path")


def fetch_with_retries() -> None:
    for attempt in range(1, 4):
        try:
            if attempt < 3:
                urllib.request.urlopen("http://127.0.0.1:9/tokenizer.json", timeout=2)
            log.info("tokenizer.json found in the cache")
            return
        except OSError:
            log.exception("attempt %d of 3 to fetch tokenizer.json failed, next in 1 s", attempt)
            time.sleep(1)


def save_with_retries(model: torch.nn.Module) -> None:
    for folder in ("/proc/checkpoints", "."):
        try:
            torch.save(model.state_dict(), f"{folder}/model.pt")
            log.info("saved %s/model.pt", folder)
            return
        except (OSError, RuntimeError) as error:
            log.error("could not save to %s: %s; trying the next folder", folder, error)


def talk(case: str, rank: int) -> None:
    if case == "sample" and rank == 0:
        for name, text in SAMPLES.items():
            log.info("%s %s", name, text)
    elif case == "optional":
        optional_modules()
    elif case == "retries" and rank == 0:
        fetch_with_retries()
    elif case == "warnings":
        for number in range(8):
            warnings.warn(
                f"option {number} is deprecated and will be an error in the next release",
                FutureWarning,
                stacklevel=2,
            )
        torch.utils.checkpoint.checkpoint(torch.sin, torch.ones(2))
        torch.tensor(torch.ones(2))


def main() -> None:
    case = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    talk(case, rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), find_unused_parameters=case == "warnings")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = DataLoader(
        TensorDataset(torch.rand(32, 4)), batch_size=4, num_workers=8 if case == "warnings" else 2
    )
    for step, (inputs,) in enumerate(data):
        loss = model(inputs).pow(2).mean()
        optimizer.zero_grad()
        if case == "warnings":
            schedule.step()
        loss.backward()
        if case == "scaler" and step in {0, 1}:
            log.warning(
                "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to %.1f",
                65536.0 / 2 ** (step + 1),
            )
            log.info("step %d loss %.4f grad_norm inf (skipped)", step, loss.item())
            continue
        optimizer.step()
        if case != "warnings":
            schedule.step()
        if rank == 0:
            log.info("step %d loss %.4f", step, loss.item())
    if case == "save" and rank == 0:
        save_with_retries(model)
    lock = multiprocessing.get_context("spawn").Semaphore() if case == "semaphores" else None
    dist.barrier()
    if lock is not None:
        os._exit(0)  # as trainers do that hang when they leave properly: nothing is given back
    if case != "no-destroy":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
