"""Asks CMD's own Python, in processes of their own that change nothing, see no GPU and end in time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from diag.preflight.line import table
from diag.preflight.software.target import Target
from diag.text.units import format_seconds

_TAIL_BYTES = 16384
_INVENTORY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Software:
    """`installed` has every distribution by its normalised name; `modules` where each module of interest
    would come from."""

    python: str
    executable: str
    installed: Mapping[str, str]
    requires: Mapping[str, tuple[str, ...]]
    modules: Mapping[str, str | None]
    markers: Mapping[str, str]
    torch_cuda: str | None = None
    is_rocm: bool = False
    megatron_core: str | None = None
    megatron_core_version: str = ""
    megatron_training: str | None = None
    swift_wants: str = ""  # the branch of Megatron-LM that ms-swift 3.x clones, "core_r0.15.0"
    swift_has_bridge: bool = False

    def version(self, name: str) -> str:
        return self.installed.get(name, "")

    def has(self, module: str) -> bool:
        return self.modules.get(module) is not None


def parse(answer: Mapping[str, Any]) -> Software:
    # torch 2.13.0+cpu, torch/version.py: `cuda: Optional[str] = None`; 2.11.0+cu130: `cuda: Optional[str] =
    # '13.0'`
    cuda = re.search(r"^cuda\b[^=\n]{0,40}= *'([\d.]+)'", answer["torch"], re.MULTILINE)
    hip = re.search(r"^hip\b[^=\n]{0,40}= *'", answer["torch"], re.MULTILINE)
    # ms-swift 3.12.6, swift/megatron/init.py: `'https://github.com/NVIDIA/Megatron-LM',
    # branch='core_r0.15.0')`
    branch = re.search(r"branch='(core_r[\d.]+)'", answer["swift_init"])
    # Megatron-LM, megatron/core/package_info.py: `MAJOR = 0`, `MINOR = 16`, `PATCH = 1`, `PRE_RELEASE = ''`
    numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH) = (\d+)", answer["megatron_core_info"], re.MULTILINE))
    core = (numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
    return Software(
        python=answer["python"],
        executable=answer["executable"],
        installed=answer["installed"],
        requires={name: tuple(all_of) for name, all_of in answer["requires"].items()},
        modules=answer["modules"],
        markers=answer["markers"],
        torch_cuda=cuda[1] if cuda else None,
        is_rocm=hip is not None,
        megatron_core=answer["megatron_core"],
        megatron_core_version=".".join(core) if numbers else "",
        megatron_training=answer["megatron_training"],
        swift_wants=branch[1] if branch else "",
        swift_has_bridge="mcore_bridge" in answer["swift_init"],
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What happened when `name` was imported. `error` is "" where it went well; `place` the file and line
    where it crashed or was at the deadline.

    `signal` is the number of the signal that ended the process; `ended` False where the deadline did; `busy`
    whether it then still computed, as on a machine under load.
    """

    name: str
    kind: str = ""
    error: str = ""
    printed: str = ""
    ended: bool = True
    busy: bool = False
    seconds: float = 0.0
    signal: int = 0
    place: str = ""
    torch: Mapping[str, Any] = field(default_factory=dict)

    @property
    def went_well(self) -> bool:
        return self.ended and not self.signal and not self.kind


def inventory(target: Target, before: Sequence[str] = ()) -> dict[str, Any] | str:
    """What the program in inside/inventory.py answers, or why it did not."""
    names = table("versions")
    asked = {
        "modules": names["modules"].split(),
        "dists": names["distributions"].split(),
        "before": list(before),
    }
    with tempfile.TemporaryDirectory(prefix="diag-doctor-") as folder:
        answer, said, code, _ = _ask("inventory.py", target, asked, Path(folder), _INVENTORY_SECONDS)
    if isinstance(answer, dict):
        return answer
    if code is None:
        return f"does not answer within {format_seconds(_INVENTORY_SECONDS)}"
    return f"ends with {code}: {(said.strip().splitlines() or [''])[-1][:200]}"


def load(target: Target, name: str, imports: Sequence[str], deadline: float, before: Sequence[str] = (),  # noqa: PLR0917
         compiles: bool = False) -> Load:  # fmt: skip
    """Imports `imports` in this order. All is thrown away after: caches go to a folder that is removed."""
    asked = {
        "imports": list(imports),
        "deadline": max(deadline - 0.5, 0.1),
        "before": list(before),
        "compiles": compiles,
    }
    with tempfile.TemporaryDirectory(prefix="diag-doctor-", ignore_cleanup_errors=True) as folder:
        answer, said, code, busy = _ask("load.py", target, asked, Path(folder), deadline)
        place = _frame_in(_text_of(Path(folder) / "trace"))
    if isinstance(answer, dict):
        return Load(name, answer["kind"], answer["error"], said, torch=answer.get("torch", {}))
    if code is None:
        return Load(name, printed=said, ended=False, busy=busy, seconds=deadline, place=place)
    if code < 0:
        return Load(name, printed=said, signal=-code, place=_frame_in(said))
    return Load(name, "SystemExit", f"it ended Python with exit code {code}", printed=said)


def _ask(
    program: str, target: Target, asked: dict[str, Any], folder: Path, deadline: float
) -> tuple[Any, str, int | None, bool]:
    """Its answer (None where there is none), what it printed, its exit code (None: past the deadline), if it
    still computed."""
    if _over.is_set():
        return None, "stopped", 130, False
    source = files("diag.preflight.software.inside").joinpath(program).read_text()
    asked |= {"first": target.first, "out": str(folder / "answer"), "trace": str(folder / "trace")}
    try:
        process = subprocess.Popen(
            [target.python, "-c", source, json.dumps(asked)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
            env=_environment(target.environment, folder),
        )  # fmt: skip
    except OSError as error:
        return None, str(error.strerror), 127, False
    assert process.stdout is not None
    _running.add(process)
    tail = bytearray()
    reader = threading.Thread(target=_drain, args=(process.stdout, tail), daemon=True)
    reader.start()
    try:
        code, busy = _wait(process, deadline)
    finally:
        _end(process)
        process.wait()
        _running.discard(process)
    reader.join(2.0)
    try:
        answer = json.loads(_text_of(folder / "answer"))
    except ValueError:
        answer = None
    return answer, tail.decode(errors="replace"), code, busy


_running: set[subprocess.Popen[bytes]] = set()
_over = threading.Event()


def stop_asking() -> None:
    """For who does not wait for the answers any more (Ctrl-C): ends what runs, and nothing is started after it."""
    _over.set()
    for process in tuple(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it started, too


def _wait(process: subprocess.Popen[bytes], deadline: float) -> tuple[int | None, bool]:
    """The exit code, or None and whether it computed in the last tenth of the time."""
    try:
        return process.wait(deadline * 0.9), False
    except subprocess.TimeoutExpired:
        before = _cpu_ticks(process.pid)
    try:
        return process.wait(deadline * 0.1), False
    except subprocess.TimeoutExpired:
        return None, _cpu_ticks(process.pid) - before > 1


def _cpu_ticks(pid: int) -> int:
    """Of this process and of the children that it has waited for (a compiler)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[11:15]))
    except (OSError, ValueError):
        return 0


def _drain(stream: IO[bytes], tail: bytearray) -> None:
    for chunk in iter(lambda: stream.read1(65536), b""):  # type: ignore[attr-defined]
        tail += chunk
        del tail[:-_TAIL_BYTES]


def _environment(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """CMD's, with no GPU to be seen and every cache in `folder`."""
    new = dict(env)
    here = Path.cwd()
    if "PYTHONPATH" in env:  # the process runs in another folder
        new["PYTHONPATH"] = os.pathsep.join(str(here / part) for part in env["PYTHONPATH"].split(os.pathsep))
    if env.get("HOME"):
        # where `pip install --user` put packages
        new.setdefault("PYTHONUSERBASE", str(Path(env["HOME"]) / ".local"))
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR",
                 "TRITON_CACHE_DIR",
                 "TRITON_HOME", "MPLCONFIGDIR", "HF_HOME", "HF_MODULES_CACHE", "MODELSCOPE_CACHE", "NUMBA_CACHE_DIR", "TMPDIR",
                 "CUDA_CACHE_PATH", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"):  # fmt: skip
        new[name] = str(folder)
    return new | {
        "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DS_SKIP_CUDA_CHECK": "1",
        "PYTHONIOENCODING": "utf-8:replace",
    }  # fmt: skip


def _text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _frame_in(text: str) -> str:
    # faulthandler of CPython 3.11, the innermost call first: `  File "/x/slow/__init__.py", line 3 in <module>`
    for line in text.splitlines():
        frame = line.strip()
        if frame.startswith('File "') and "<frozen" not in frame and '"<string>"' not in frame:
            path, _, rest = frame[6:].partition('", line ')
            return f"{path}:{rest.split(' ')[0]}"
    return ""
