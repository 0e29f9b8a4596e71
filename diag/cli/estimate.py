"""`diag estimate -- CMD ...`: the GPU and host memory that CMD will need, the save included, by its own
arguments."""

from __future__ import annotations

import argparse
import json
import os

from diag.text.colour import wanted
from diag.text.errors import DiagError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print diag.estimate/1")
    parser.add_argument(
        "--sources", action="store_true", help="say beside each term where its formula comes from"
    )
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="of one GPU, such as 80GiB (default: the GPUs here)"
    )
    parser.add_argument(
        "--host-memory", metavar="SIZE", help="of one node (default: this one, if it has GPUs)"
    )
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="where CMD does not say how many processes a node has"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="where CMD does not say it")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the training command"
    )


def run(args: argparse.Namespace) -> int:
    from diag.preflight.estimate import estimate, look
    from diag.preflight.estimate.report import document, text

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        hint = "diag estimate -- megatron sft --model Qwen/Qwen3-8B ..."
        raise DiagError("there is no command to estimate", hint=hint, exit_code=2)
    if not words[0].strip():
        raise DiagError(
            "the command after `--` is empty",
            hint="a variable in front of it may be empty",
            exit_code=2,
        )
    for name, value in (("--gpus-per-node", args.gpus_per_node), ("--nodes", args.nodes)):
        if value is not None and not 1 <= value <= 1_000_000:
            raise DiagError(f"{name} is {value}", hint="a number from 1 on", exit_code=2)
    machine = look(args.gpu_memory, args.host_memory, args.gpus_per_node)
    told = estimate(words, os.environ, machine=machine, nodes=args.nodes)
    if args.json:
        print(json.dumps(document(told), indent=1))
    else:
        print(text(told, colour=wanted(1), sources=args.sources))
    return 0 if told.fits else 10
