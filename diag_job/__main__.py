"""`python -m diag_job`: a small Megatron-core DPO job on gloo, for tests and benchmarks. Starts in seconds."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from . import faults

_SAVE_FAULTS = ("save-stall", "slow-save", "host-oom", "parent-oom", "rlimit-as", "growing-save")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m diag_job", description=__doc__)
    p.add_argument("--nproc", type=int, default=2, help="ranks (default 2)")
    p.add_argument("--tp", type=int, default=1, help="tensor parallel size, with sequence parallelism")
    p.add_argument("--pp", type=int, default=1, help="pipeline parallel size")
    p.add_argument(
        "--ep", type=int, default=None, help="expert parallel size (default 2 if the ranks allow, else 1)"
    )
    p.add_argument("--iters", type=int, default=12)
    p.add_argument("--micro-batch-size", type=int, default=2)
    p.add_argument("--global-batch-size", type=int, default=8)
    p.add_argument("--workers", type=int, default=2, help="DataLoader workers a rank")
    p.add_argument(
        "--step-seconds", type=float, default=0.0, metavar="MIN", help="make each step last at least so long"
    )
    p.add_argument(
        "--save-steps",
        type=int,
        default=0,
        metavar="N",
        help="save a checkpoint every N steps (default never)",
    )
    p.add_argument("--output-dir", type=Path, help="for checkpoints and logging.jsonl")
    # ms-swift's own two, by which a job of its goes on
    p.add_argument(
        "--mcore-model", "--mcore_model", type=Path, metavar="CHECKPOINT", help="go on from this checkpoint-N"
    )
    p.add_argument(
        "--finetune",
        choices=("true", "false"),
        default="true",
        help="true: with its weights alone, from step 0",
    )
    p.add_argument(
        "--fault",
        metavar="NAME[:key=value,...]",
        help="same as DIAG_FAULT; python -m diag_job.faults lists them",
    )
    return p


def main() -> int:
    options = parser().parse_args()
    if "WORLD_SIZE" in os.environ:
        options.nproc = int(os.environ["WORLD_SIZE"])
    if options.ep is None:
        options.ep = 2 if options.nproc // options.pp % 2 == 0 else 1
    if "RANK" in os.environ:
        faults.arm()  # before torch is imported
        from .trainer import train

        train(options)
        return 0
    launch(options)


def launch(options: argparse.Namespace) -> NoReturn:
    """Become torchrun, which starts this same command as each rank."""
    world = options.nproc
    if world % (options.tp * options.pp) or world % (options.pp * options.ep):
        parser().error(f"--nproc {world} does not divide by --tp x --pp and by --pp x --ep")
    data_parallel = world // (options.tp * options.pp)
    if options.global_batch_size % (options.micro_batch_size * data_parallel):
        parser().error(
            f"--global-batch-size {options.global_batch_size} is no multiple of "
            f"--micro-batch-size {options.micro_batch_size} x {data_parallel} data parallel ranks"
        )
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if options.fault is not None:
        environment["DIAG_FAULT"] = options.fault
    if environment.get("DIAG_FAULT"):
        try:
            fault = faults.parse(environment["DIAG_FAULT"])
            faults.check(fault, world)
        except faults.FaultError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        if fault.name in _SAVE_FAULTS and not options.save_steps:
            options.save_steps = max(2, fault.step + 1)
    if options.save_steps and options.output_dir is None:
        options.output_dir = Path(tempfile.mkdtemp(prefix="diag-job-"))
    # --standalone: a free port of its own, so that several jobs run side by side.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(world)]
    # Not --nproc: torchrun would take it for a short form of its own. The fault goes by environment, as in
    # the real job.
    arguments = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in vars(options).items()
        if value is not None and name not in ("nproc", "fault")
    ]
    sys.stdout.flush()
    os.execve(sys.executable, [*command, "-m", "diag_job", *arguments], environment)


if __name__ == "__main__":
    sys.exit(main())
