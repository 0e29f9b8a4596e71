"""`diag estimate -- CMD ...`: the GPU and host memory that CMD will need, the save included, by its own
arguments."""

from __future__ import annotations

import argparse
import json
import os
import sys

from diag.cli.language import add_language, speaker
from diag.text.colour import wanted
from diag.text.errors import DiagError

_MOST_SECONDS = 1e6


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print diag.estimate/1")
    parser.add_argument("--sources", action="store_true", help="show the source of each formula")
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of one GPU, such as 80GiB (default: the GPUs here)"
    )
    parser.add_argument(
        "--host-memory", metavar="SIZE", help="memory of one node (default: this one, if it has GPUs)"
    )
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="processes of a node, where CMD does not set them"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        default="",
        help="in place of CMD's model: a folder with its config.json, or a known name",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        default="",
        help="name of the GPU, such as H100, for its peak (default: that here)",
    )
    parser.add_argument(
        "--step-seconds", type=float, metavar="S", help="how long a step takes: shown as tokens/s and MFU"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes, where CMD does not set it")
    add_language(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the training command"
    )


def run(args: argparse.Namespace) -> int:
    from diag.preflight.estimate import estimate, look
    from diag.preflight.estimate.report import document, text

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        hint = "diag estimate -- megatron sft --model Qwen/Qwen3-8B ..."
        raise DiagError("no command given", hint=hint, exit_code=2)
    if not command[0].strip():
        raise DiagError(
            "the command after `--` is empty",
            hint="a variable in front of it may be empty",
            exit_code=2,
        )
    for name, value in (("--gpus-per-node", args.gpus_per_node), ("--nodes", args.nodes)):
        if value is not None and not 1 <= value <= 1_000_000:
            raise DiagError(f"{name} is {value}", hint="a number from 1 to 1000000", exit_code=2)
    machine = look(args.gpu_memory, args.host_memory, args.gpus_per_node)
    if args.step_seconds is not None and not 0 < args.step_seconds < _MOST_SECONDS:
        raise DiagError(
            f"--step-seconds is {args.step_seconds:g}", hint="seconds of one step, such as 13", exit_code=2
        )
    found = estimate(
        command, os.environ, machine=machine, nodes=args.nodes, model=args.model, ranks=args.gpus_per_node
    )
    if args.json:
        print(json.dumps(document(found), indent=1))
    else:
        gpu = args.gpu or machine.gpu_name
        say = speaker("estimate", sys.stdout, args.lang)
        step = args.step_seconds
        print(text(found, colour=wanted(1), sources=args.sources, gpu=gpu, step_seconds=step, say=say))
    return 0 if found.fits else 10
