"""`diag run [options] -- CMD ...`: CMD as it is, with diag next to it.

The job comes first: what does not work of diag is reported in one line, and CMD runs all the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from diag.cli.language import add_language
from diag.launch.actions import AFTER_SECONDS, GRACE_SECONDS, read_rules
from diag.text.colour import wanted
from diag.text.errors import DiagError

_MOST_SECONDS = 7 * 86400.0


def add(parser: argparse.ArgumentParser) -> None:
    add_hub_options(parser)
    _add_switch(parser, "inject", "do not add the in-rank hook to CMD's PYTHONPATH")
    _add_switch(parser, "nccl_debug", "do not set NCCL_DEBUG for CMD")
    _add_actions(parser)
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print findings only, no line about diag itself"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command to run")


def _add_actions(parser: argparse.ArgumentParser) -> None:
    """On the command line alone: no file and no variable can make diag end a job."""
    parser.add_argument(
        "--on",
        action="append",
        metavar="CLASS=ACTION",
        help="act on a hang that is certain and stands: hang or hang/CLASS = notify, run:CMD, end[:CODE] or "
        "restart[:N] (from the last whole checkpoint); repeatable, the first that may be done is",
    )
    parser.add_argument(
        "--after",
        type=float,
        metavar="S",
        default=AFTER_SECONDS,
        help=f"act on what stood for S seconds since it was reported (default {AFTER_SECONDS:g})",
    )
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        default=GRACE_SECONDS,
        help=f"seconds from SIGTERM to SIGKILL, when CMD is ended (default {GRACE_SECONDS:g})",
    )


def _actions(args: argparse.Namespace) -> dict[str, Any] | None:
    """What `--on` asks for, checked; None where it was not given. Raises DiagError."""
    if not args.on:
        return None
    read_rules(args.on)
    for name, value in (("--after", args.after), ("--grace", args.grace)):
        if not 0 <= value < _MOST_SECONDS:
            raise DiagError(
                f"{name} {value:g} is no time",
                hint=f"seconds, from 0 to {_MOST_SECONDS:g}",
                exit_code=2,
            )
    return {"on": args.on, "after": args.after, "grace": args.grace}


def _add_switch(parser: argparse.ArgumentParser, setting: str, text: str) -> None:
    """`--no-SETTING`; None where it is not given."""
    option = f"--no-{setting.replace('_', '-')}"
    parser.add_argument(option, action="store_const", const=False, dest=setting, help=text)


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Options that every verb with a hub has; None means not given."""
    parser.add_argument("--run-root", type=Path, metavar="DIR", help="make the run directory in DIR")
    parser.add_argument("--host", metavar="ADDRESS", help="HTTP address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="HTTP port (default 9095; 0: any free one)")
    parser.add_argument(
        "--nodes",
        metavar="auto|off|HOSTS",
        help="which nodes' hubs join to judge the job together: auto (default, needs "
        "DIAG_TOKEN), off, host[:port],... or @FILE",
    )
    _add_switch(parser, "http", "do not serve HTTP")
    _add_switch(parser, "auto_evidence", "write no bundle by itself when a critical finding is told")
    parser.add_argument(
        "--stack-seconds", type=float, metavar="S", help="time between stack samples (default 5)"
    )
    parser.add_argument(
        "--ras",
        choices=("auto", "force", "off"),
        help="ask NCCL RAS under suspicion (default auto: NCCL 2.28.7 "
        "and later; force: earlier ones too, which may crash the job)",
    )
    parser.add_argument(
        "--expect-net",
        dest="expected_net",
        metavar="NAME[,NAME]",
        help="networks NCCL should use between nodes, such as "
        "'IB,IBext*' or Socket (default: anything but sockets)",
    )
    parser.add_argument(
        "--rules", type=Path, metavar="DIR", help="a folder of rules beside those that come with diag"
    )
    parser.add_argument(
        "--notify",
        action="append",
        metavar="URL",
        help="send messages on critical findings and the job's end: slack://, feishu://, lark://, dingtalk://, wecombot://, "
        "discord://, tgram://, ntfy://, mailto://, the https:// address that the service shows, or @FILE with one "
        "a line; repeatable",
    )
    parser.add_argument(
        "--feed",
        action="append",
        metavar="NAME",
        help="tell a controller of the cluster of warning and critical findings: kubernetes, trainjob, nvsentinel, nvrx or "
        "slurm, with NAME:OPTION=VALUE,... where it has options; repeatable",
    )
    parser.add_argument(
        "--on-finding",
        metavar="CMD",
        help="start CMD, without a shell, for each warning or critical finding and each change of it; the finding "
        "is JSON on its stdin",
    )
    add_language(parser)
    parser.add_argument(
        "--job-id",
        metavar="NAME",
        help="name of the job in metric labels (default: Slurm's job id, torchrun's "
        "--rdzv-id, else the run's id)",
    )
    parser.add_argument(
        "--sd-file",
        type=Path,
        metavar="PATH",
        help="write a file_sd file that announces this hub to Prometheus; for a directory: DIR/JOB-NODE.json",
    )


def hub_settings(args: argparse.Namespace) -> dict[str, Any]:
    """By the settings that these options set; None for those that were not given."""
    names = (
        "run_root host port http auto_evidence stack_seconds ras rules nodes job_id sd_file expected_net "
        "on_finding lang"
    )
    several = {
        name: " ".join(given) if (given := getattr(args, name)) else None for name in ("notify", "feed")
    }
    return {**{name: getattr(args, name) for name in names.split()}, **several}


def run(args: argparse.Namespace) -> int:
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise DiagError(
            "no command given", hint="diag run -- torchrun --nproc_per_node 8 train.py", exit_code=2
        )
    if words[0].startswith("-"):
        _refuse_option(words)
    from diag.launch import command as commands
    from diag.launch import signals
    from diag.launch.malloc import use_few_heaps

    held = commands.hold_closed_stdio()
    try:
        prepared = signals.prepare()  # before threads
    except OSError as error:
        prepared = None
        why = error.strerror or str(error)
    from diag.launch.carrier import Carrier, run_alone

    if prepared is None:
        return run_alone(words, why, None)
    use_few_heaps()
    try:
        return Carrier(words, _task(args, words), prepared, held).run()
    finally:
        prepared.witness.close()


def _task(args: argparse.Namespace, words: list[str]) -> dict[str, object]:
    """What the hub's process gets to know of the command line and of the terminal."""
    from diag.launch.command import columns

    flags = {**hub_settings(args), "inject": args.inject, "nccl_debug": args.nccl_debug}
    act = _actions(args)
    return {
        **({"act": act} if act is not None else {}),
        "words": words,
        "quiet": args.quiet,
        "terminal": os.isatty(1),
        "width": columns(),
        "colour": wanted(2),
        "encoding": getattr(sys.stderr, "encoding", None),
        "flags": {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()},
    }


def _refuse_option(words: list[str]) -> None:
    """Raises DiagError where diag's own option comes after `--`, or two `--` in a row."""
    parser = argparse.ArgumentParser()
    add(parser)
    name = words[0].partition("=")[0]
    if name in parser._option_string_actions:
        raise DiagError(
            f"{name} is an option of diag: put it before `--`",
            exit_code=2,
            hint=f"diag run {name} ... -- CMD",
        )
