"""`diag doctor --env`: each variable that the job would have, what it does there, who reads it, and what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.knowledge import env_lint, table
from diag.knowledge.words import known_variables, names, read_by
from diag.launch.launchers.command.shell_script import is_computed
from diag.launch.launchers.secrets import HIDDEN, is_secret, without_secrets
from diag.launch.launchers.tables import read_tables
from diag.preflight.launch_facts import flag
from diag.preflight.line import Line, advice_line, line
from diag.preflight.line import table as lines_table
from diag.preflight.plan import LaunchPlan, make_plan
from diag.preflight.software.ask import Software, inventory, parse
from diag.preflight.software.target import Target, find_target
from diag.preflight.storage import written_folder
from diag.preflight.variable_readers import Readers, find_readers
from diag.text.errors import SourceUnavailable
from diag.text.tables import fill

# Families whose names a job's environment has for the job.
_FAMILIES = (
    "NCCL_", "TORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "GLOO_", "CUDA_", "PYTORCH_", "HF_", "HUGGINGFACE_",
    "HUGGING_FACE_", "TRANSFORMERS_", "MODELSCOPE_", "SWIFT_", "MEGATRON_", "NVTE_", "DEEPSPEED_", "DS_",
    "ACCELERATE_", "FSDP_", "PET_", "OMP_", "TRITON_", "CUBLAS_", "CUDNN_", "ASCEND_", "HCCL_", "UCX_", "VLLM_",
)  # fmt: skip
# torch 2.13, distributed/elastic/agent/server/local_elastic_agent.py gives these to each rank; DeepSpeed's launch.py and
# accelerate's do so with the first.
_GIVEN_TO_RANKS = frozenset(
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "GROUP_WORLD_SIZE",
     "ROLE_WORLD_SIZE"]
)  # fmt: skip
_OF_LAUNCH = frozenset(["NPROC_PER_NODE", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"])
_MOST_VALUE = 120
# Read by many programs, the trainers' packages among them, and no matter of the job.
_OF_EVERYBODY = frozenset(
    ["PATH", "HOME", "USER", "SHELL", "LANG", "TERM", "PWD", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR"]
)
_TRAINERS = ("swift/", "mcore_bridge/", "megatron/")


@dataclass(frozen=True, slots=True)
class _Page:
    plan: LaunchPlan
    software: Software | None  # of CMD's Python; None: not known
    readers: Readers | None  # None: not looked
    why_not: str
    advice: Mapping[str, env_lint.Advice]
    # what would be said of a job of two nodes, where their number is not known
    of_several: Mapping[str, env_lint.Advice]

    @property
    def launcher(self) -> str:
        launch = self.plan.launch
        return launch.launcher if launch is not None else ""

    @property
    def where(self) -> str:
        """What was looked at for a reader."""
        looked = self.readers.looked if self.readers is not None else ()
        if not looked:
            return _word("by-names")
        first, more = ", ".join(looked[:2]), len(looked) - 2
        return _word("looked-in-more" if more > 0 else "looked-in", first=first, more=more)

    def setting(self, name: str) -> str:
        """Its value, and where it was set."""
        value = self.plan.environment[name]
        shown = HIDDEN if is_secret(name) and value else without_secrets(value)
        shown = shown if len(shown) <= _MOST_VALUE else f"{shown[:_MOST_VALUE]}..."
        return f"{shown} ({self._origin(name)})"

    def _origin(self, name: str) -> str:
        plan = self.plan
        if name in plan.origins:
            return str(plan.origins[name])
        return _word("by-command" if sets_it(plan, name) else "by-environment")


def _word(key: str, **values: object) -> str:
    return fill(lines_table("variables")["words"][key], **values)


def sets_it(plan: LaunchPlan, name: str) -> bool:
    """Whether CMD itself does, and not the environment that it is started in."""
    return plan.inherited.get(name) != plan.environment[name] or plan.container is not None


def check_variables(
    command: Sequence[str], environment: Mapping[str, str] | None = None, sites: Sequence[Path] | None = None
) -> Iterator[Line]:
    """`sites`: where CMD's Python has its packages; None: found out."""
    plan = make_plan(command, os.environ if environment is None else environment, 0.0)
    wanted = sorted(_concerned(plan))
    advice: dict[str, env_lint.Advice] = {}
    for one in env_lint.lint(
        plan.environment, nodes=plan.nodes, nccl_version=plan.nccl_version, rdma=plan.rdma
    ):
        advice[one.variable] = one
    # What is wrong in a job of several nodes only is not called right where their number is not known.
    several = () if plan.nodes is not None else env_lint.lint(
        plan.environment, nodes=2, nccl_version=plan.nccl_version, rdma=None
    )  # fmt: skip
    unknown = [name for name in wanted if not _is_known(name) or name in _invented()]
    readers = None
    others = _others(plan)
    target = find_target(command, dict(plan.environment))
    software, why_not = _software(target, plan) if sites is None else (None, "")
    places = sites if sites is not None else _sites(software)
    if places and (unknown or others):
        readers = find_readers([*unknown, *others], places, _scripts(plan, target))
        trained = [name for name in others if readers.places.get(name, "").startswith(_TRAINERS)]
        wanted = sorted([*wanted, *trained])
    page = _Page(plan, software, readers, why_not, advice, {one.variable: one for one in several})
    for name in wanted:
        yield from _lines(page, name)
    if plan.command.environment_unseen:
        yield line("variables.unseen", unseen=plan.command.environment_unseen)
    if not wanted:
        yield line("variables.none")


def _concerned(plan: LaunchPlan) -> Iterator[str]:
    """Those of a family or a table, and all that CMD itself sets for a program, in capitals as variables are."""
    for name, value in plan.environment.items():
        if not value:
            continue
        if (
            name.startswith(_FAMILIES)
            or (_is_known(name) and name not in ("TMPDIR", "HOME"))
            or (name == name.upper() and name not in _OF_EVERYBODY and sets_it(plan, name))
        ):
            yield name


def _invented() -> Mapping[str, str]:
    found: dict[str, str] = table("trainer_variables")["invented"]
    return found


def _is_known(name: str) -> bool:
    tabled = name in known_variables() or name in _GIVEN_TO_RANKS or name in _invented()
    return tabled or any(True for _ in read_by(name))


def _others(plan: LaunchPlan) -> list[str]:
    """Those of this environment that a trainer may read too: not what every process has."""
    return [
        name
        for name in plan.environment
        if re.fullmatch(r"[A-Z][A-Z0-9_]{2,60}", name)
        and name not in _OF_EVERYBODY
        and not (name.startswith(_FAMILIES) or _is_known(name) or sets_it(plan, name))
    ]


def _software(target: Target, plan: LaunchPlan) -> tuple[Software | None, str]:
    """What CMD's Python has installed, or why that is not known."""
    if plan.container is not None:
        return None, f"its packages are in the image {plan.container.short_image}"
    if target.unfit or target.missing_program:
        return None, target.unfit or f"`{target.missing_program}` is not found on PATH"
    answer = inventory(target)
    if isinstance(answer, str):
        return None, f"{target.python} {answer}"
    return parse(answer), ""


def _sites(software: Software | None) -> Sequence[Path]:
    """The folders that hold its packages."""
    if software is None:
        return ()
    files = (Path(path) for path in software.modules.values() if path)
    parents = (path.parent.parent if path.name.startswith("__init__") else path.parent for path in files)
    return tuple(dict.fromkeys(path for path in parents if path.name.endswith("-packages")))


def _scripts(plan: LaunchPlan, target: Target) -> list[Path]:
    """CMD's own files, as far as they are here."""
    words = [target.script, *plan.command.argv, *plan.command.line, *plan.command.words]
    paths = [plan.command.folder / word for word in words if word.endswith((".py", ".sh"))]
    return [path for path in dict.fromkeys(paths) if path.is_file()]


def _lines(page: _Page, name: str) -> Iterator[Line]:
    """One; of a variable with an advice what it sets and who reads it stands behind what is wrong with it."""
    setting, known = page.setting(name), known_variables().get(name, {})
    sets, by = known.get("sets", "what its name says"), "; ".join(read_by(name))
    if page.plan.nccl_version is not None and name in env_lint.nccl_variables():
        by += f"; this is {env_lint.dotted(page.plan.nccl_version)}"
    values: dict[str, Any] = {"name": name, "setting": setting, "sets": sets, "by": by, "where": page.where}
    if (advice := page.advice.get(name)) is not None:
        yield _advised(name, setting, advice, known)
    elif (advice := page.of_several.get(name)) is not None:
        yield line("variables.of-several", does=advice.does, instead=advice.instead, **values)
    elif (key := _by_launcher(page, name)) is not None:
        yield line(f"variables.{key}", launcher=page.launcher, flags=_flags(page.launcher), **values)
    elif (package := _gone(page, known)) and page.software is not None:
        yield line("variables.gone", package=package, version=page.software.version(package), **values)
    elif known.get("folder"):
        yield _folder(page, name, known["folder"], values)
    elif by:
        yield line("variables.read", **values)
    else:
        yield _unknown(page, name, values)


def _gone(page: _Page, known: Mapping[str, Any]) -> str:
    """The package whose version here does not read it any more; "" for none."""
    for package, first in known.get("until", {}).items():
        version = page.software.version(package) if page.software is not None else ""
        if version.partition(".")[0].isdecimal() and int(version.partition(".")[0]) >= int(first):
            return str(package)
    return ""


def _advised(name: str, setting: str, advice: env_lint.Advice, known: Mapping[str, str]) -> Line:
    found = advice_line(name, setting, advice)
    return found if not known.get("wrong") else Line(
        name, found.status, f"{found.said} ({known['sets']})", found.remedy, found.id, found.severity
    )  # fmt: skip


def _by_launcher(page: _Page, name: str) -> str | None:
    """How CMD's launcher treats one of those that say where ranks are; None where it reads it, or is not known."""
    plan, launcher = page.plan, page.launcher
    if launcher and name in _GIVEN_TO_RANKS and (plan.is_elastic or launcher == "deepspeed"):
        return "overwritten"
    if name not in _OF_LAUNCH or launcher not in ("torchrun", "accelerate", "deepspeed"):
        return None
    rows = read_tables("launchers.toml")["rendezvous"][launcher]
    names_read = [one for what in ("nodes", "address", "port", "rank") for one in rows[what]]
    return None if name in names_read else "not-by-launcher"


def _flags(launcher: str) -> str:
    if launcher in ("swift", "megatron"):
        return "NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT"
    rows = read_tables("launchers.toml")["rendezvous"].get(launcher, {})
    flags = [rows[what][0] for what in ("nodes", "rank", "address", "port") if rows.get(what)]
    return ", ".join([*flags, flag("ranks", launcher, "N")])


def _folder(page: _Page, name: str, kind: str, values: Mapping[str, Any]) -> Line:
    plan, path = page.plan, page.plan.environment[name]
    if is_computed(path):
        return line("variables.read", **values)
    if plan.container is not None:
        here = plan.container.path_here(path)
        if here is None:
            key = "in-container" if kind == "cache" else "read"
            return line(f"variables.{key}", value=path, **values)
        path = here
    place = plan.command.folder / Path(path).expanduser()
    if kind == "source":
        return line(f"variables.{'read' if place.exists() else 'source-missing'}", **values)
    try:
        folder = written_folder(str(place))
    except SourceUnavailable:
        return line("variables.read", **values)
    yet = "" if place.exists() else _word("not-yet")
    details = {
        "wrong": folder.wrong,
        "there": folder.there,
        "kind": folder.space.file_system + yet,
        "nodes": plan.nodes,
    }
    if folder.wrong:
        return line("variables.cache-wrong", **values, **details)
    if (plan.nodes or 1) > 1 and not folder.on_network and "TRITON" not in name and "INDUCTOR" not in name:
        return line("variables.cache-own", **values, **details)
    return line(f"variables.{'read' if place.exists() else 'cache-new'}", **values, **details)


def _unknown(page: _Page, name: str, values: Mapping[str, Any]) -> Line:
    readers = page.readers
    if readers is not None and name in readers.places:
        return line("variables.found", place=readers.places[name], **values)
    if name in _invented():
        return line("variables.invented", instead=_invented()[name], **values)
    if env_lint.is_of_plugin(name):
        return line("variables.of-plugin", **values)
    near = difflib.get_close_matches(name, names(), 1, 0.88)
    if near and name.startswith(_FAMILIES):
        about = known_variables().get(near[0], {}).get("sets", "it is read")
        return line("variables.misspelt", near=near[0], **{**values, "sets": about})
    if readers is None or not readers.looked:
        return line("variables.unlooked", why=page.why_not or "no package of a training was found", **values)
    if name in readers.flags:
        value = page.plan.environment[name]
        return line("variables.flag", flag=readers.flags[name], value=value, **values)
    if name in readers.mentions:
        return line("variables.named", place=readers.mentions[name], **values)
    return line("variables.unread", **values)
