"""`python -m diag_job.megatron`: the real `megatron rlhf --rlhf_type dpo` of ms-swift on a tiny model made
here.

It makes the assets, sets the environment and becomes the genuine command, so processes, arguments, log lines
and checkpoint files are those of production. Without a GPU the CPU device layer is armed, by environment
alone.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import assets, faults, hooks


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m diag_job.megatron", description=__doc__)
    p.add_argument("--nproc", type=int, default=2, help="ranks (default 2)")
    p.add_argument("--iters", type=int, default=8)
    p.add_argument("--tp", type=int, default=1, help="tensor parallel size, with sequence parallelism")
    p.add_argument("--pp", type=int, default=1, help="pipeline parallel size")
    p.add_argument(
        "--ep", type=int, default=None, help="expert parallel size (default 2 if the ranks allow, else 1)"
    )
    p.add_argument("--workers", type=int, default=2, help="DataLoader workers a rank")
    p.add_argument("--save-steps", type=int, default=None, metavar="N", help="default: one save, at the end")
    p.add_argument("--output-dir", type=Path, help="default: a new folder below the temporary one")
    p.add_argument("--assets", type=Path, default=assets.default_folder(), metavar="DIR")
    p.add_argument(
        "--fault",
        metavar="NAME[:key=value,...]",
        help="same as DIAG_FAULT; python -m diag_job.faults lists them",
    )
    p.add_argument(
        "--print", action="store_true", help="print the command as a shell script instead of running it"
    )
    p.add_argument(
        "extra", nargs="*", metavar="-- FLAGS", help="more flags for `megatron rlhf`; the last of two wins"
    )
    return p


def has_gpu() -> bool:
    """Whether torch sees a GPU; without an NVIDIA device node, answered without the second that importing
    torch takes."""
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return False
    import torch

    return bool(torch.cuda.is_available())


def environment(options: argparse.Namespace, gpu: bool) -> dict[str, str]:
    """What the command needs beyond the caller's environment."""
    scratch = options.assets / "cache"
    added = {
        "NPROC_PER_NODE": str(options.nproc),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(scratch / "hf"),
        "MODELSCOPE_CACHE": str(scratch / "modelscope"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not gpu:
        added |= {"DIAG_JOB_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    if options.fault is not None:
        added["DIAG_FAULT"] = options.fault
    if not gpu or options.fault is not None or os.environ.get("DIAG_FAULT"):
        # Behind what is there: diag's own hook comes first and hands on to the one in this folder.
        added["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(hooks.FOLDER)]))
    return added


def command(options: argparse.Namespace, gpu: bool) -> list[str]:
    """The genuine command line; --ddp_backend is all that is said for the CPU."""
    flags = {
        "rlhf_type": "dpo",
        "model": options.assets / assets.MODEL_NAME,
        "model_type": "qwen3_moe",
        "template": "qwen3",
        "tuner_type": "full",
        "dataset": options.assets / "pairs.jsonl",
        "split_dataset_ratio": 0,
        "check_model": "false",
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "max_length": 128,
        "train_iters": options.iters,
        "logging_steps": 1,
        "save_steps": options.save_steps or options.iters,
        "lr": 1e-4,
        "min_lr": 1e-5,
        "dataloader_num_workers": options.workers,
        "output_dir": options.output_dir,
        "tensor_model_parallel_size": options.tp,
        "pipeline_model_parallel_size": options.pp,
        "expert_model_parallel_size": options.ep,
        "sequence_parallel": "true" if options.tp > 1 else "false",
    }
    if not gpu:
        flags["ddp_backend"] = "gloo"
    # The script beside this interpreter, so that it works in an environment that is not activated.
    beside = Path(sys.executable).with_name("megatron")
    script = str(beside) if beside.exists() else shutil.which("megatron")
    if script is None:
        print(
            "error: there is no `megatron` command: ms-swift is not installed in this environment\n\n"
            "hint: pip install -r requirements/job.txt, or use the small job, python -m diag_job",
            file=sys.stderr,
        )
        sys.exit(127)
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [script, "rlhf", *words, *options.extra]


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    if options.ep is None:
        options.ep = 2 if options.nproc // options.pp % 2 == 0 else 1
    if options.output_dir is None:
        options.output_dir = Path(tempfile.mkdtemp(prefix="diag-megatron-"))
    gpu = has_gpu()
    added = environment(options, gpu)
    fault = added.get("DIAG_FAULT") or os.environ.get("DIAG_FAULT")
    if fault:
        try:
            faults.check(faults.parse(fault), options.nproc)
        except faults.FaultError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    words = command(options, gpu)
    if options.print:
        print("#!/bin/sh")
        print(shlex.join([sys.executable, "-m", "diag_job.assets", str(options.assets)]) + " >/dev/null")
        for name, value in added.items():
            print(f"export {name}={shlex.quote(value)}")
        print("exec " + shlex.join(words))
        return 0
    assets.make(options.assets)
    sys.stdout.flush()
    os.execvpe(words[0], words, {**os.environ, **added})


if __name__ == "__main__":
    sys.exit(main())
