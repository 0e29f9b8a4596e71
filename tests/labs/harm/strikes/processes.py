"""Signals and limits: processes of diag killed, stopped, starved of memory, descriptors and processes."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.labs.harm.fault import Undo, memory_controllers, send, sidecars
from tests.labs.harm.judge import Outcome
from tests.labs.harm.trial import REPOSITORY, Running


def kill_one(run: Running, chance: random.Random) -> str:
    found = sidecars(run)
    return send(chance.choice(found), signal.SIGKILL) if found else "no sidecar yet"


def kill_all_sidecars(run: Running, chance: random.Random) -> str:
    return "; ".join(send(process, signal.SIGKILL) for process in sidecars(run))


def kill_everything(run: Running, chance: random.Random) -> str:
    """The carrier, its signal witness, hub, sidecars and what they started, at one moment; the job lives on."""
    hub = run.carrier()
    job = run.job_processes()
    if not job:
        return "too late: the job has ended"
    found = [
        process for process in hub.children(recursive=True) if process.pid not in job | run.job_processes()
    ]
    for process in (hub, *found):
        send(process, signal.SIGSTOP)  # none of them sees another die
    chance.shuffle(found)
    told = "; ".join(send(process, signal.SIGKILL) for process in (hub, *found))
    return told


def stop_some(run: Running, chance: random.Random) -> str:
    return "; ".join(send(process, signal.SIGSTOP) for process in sidecars(run) if chance.random() < 0.7)


def stop_and_go(run: Running, chance: random.Random) -> str:
    found, seconds = sidecars(run), chance.uniform(0.2, 2.0)
    for process in found:
        send(process, signal.SIGSTOP)
    run.pause(seconds)
    for process in found:
        send(process, signal.SIGCONT)
    return f"sidecars stopped for {seconds:.1f} s"


def kill_hub(run: Running, chance: random.Random) -> str:
    return send(run.hub(), signal.SIGKILL)


def stop_hub(run: Running, chance: random.Random) -> str:
    seconds = chance.uniform(0.2, 3.0)
    hub = run.hub()
    send(hub, signal.SIGSTOP)
    run.pause(seconds)
    send(hub, signal.SIGCONT)
    return f"hub stopped for {seconds:.1f} s"


def kill_carrier(run: Running, chance: random.Random) -> str:
    return send(run.carrier(), signal.SIGKILL)


def stop_carrier(run: Running, chance: random.Random) -> str:
    seconds, carrier = chance.uniform(0.2, 3.0), run.carrier()
    send(carrier, signal.SIGSTOP)
    run.pause(seconds)
    send(carrier, signal.SIGCONT)
    return f"carrier stopped for {seconds:.1f} s"


def stop_hub_over_end(run: Running, chance: random.Random) -> str:
    hub = run.hub()
    send(hub, signal.SIGSTOP)
    run.until_job_ended()
    send(hub, signal.SIGCONT)
    return "hub stopped until the job had ended"


def hub_without_memory(run: Running, chance: random.Random) -> str:
    hub = run.hub()
    room = chance.randrange(0, 32 << 20)
    size = hub.memory_info().vms + room
    resource.prlimit(hub.pid, resource.RLIMIT_AS, (size, size))
    return f"hub may take {room >> 20} MiB more"


def hub_without_files(run: Running, chance: random.Random) -> str:
    hub = run.hub()
    most = hub.num_fds() + chance.randrange(0, 3)
    resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (most, most))
    return f"hub may open {most} files"


# --- no more processes
# -----------------------------------------------------------------------------------------


def other_user(folder: Path) -> tuple[str, ...]:
    """A user that only this trial has, whose processes are counted alone; the limit binds no root."""
    uid = str(_uid(folder))
    for path in (folder, *folder.iterdir()):
        os.chown(path, int(uid), int(uid))
    read = "+dac_override,+dac_read_search"  # of the interpreter, which may be in root's home; no limit is lifted by these
    caps = (f"--inh-caps=-all,{read}", f"--ambient-caps={read}")
    return ("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", *caps, "--")


def _uid(folder: Path) -> int:
    return 40000 + abs(hash(folder.name)) % 20000


def hub_without_processes(run: Running, chance: random.Random) -> str:
    """Of diag alone: what the job may start is as before."""
    most = chance.randrange(0, 4)
    hub = run.hub()
    uid = str(hub.uids().real)
    count = sum(process.num_threads() for process in psutil.process_iter() if _is_of(process, hub))
    # By that user: root without CAP_SYS_RESOURCE, as in a container, may not.
    subprocess.run(
        [
            "setpriv",
            "--reuid",
            uid,
            "--regid",
            uid,
            "--clear-groups",
            "--",
            "prlimit",
            "--pid",
            str(hub.pid),
            f"--nproc={count + most}:{count + most}",
        ],
        check=True,
    )
    for process in sidecars(run):
        if chance.random() < 0.5:
            send(process, signal.SIGKILL)  # to be started again
    return f"hub may start {most} more threads or processes"


def _is_of(process: psutil.Process, hub: psutil.Process) -> bool:
    try:
        return process.uids().real == hub.uids().real
    except psutil.Error:
        return False


# --- the kernel's OOM killer, in cgroups of diag's own processes
# -------------------------------------------------


def hub_out_of_memory(run: Running, chance: random.Random) -> str:
    run.until_sidecars()
    return _out_of_memory(run, run.hub(), chance)


def sidecar_out_of_memory(run: Running, chance: random.Random) -> str:
    run.until_sidecars()
    return _out_of_memory(run, chance.choice(sidecars(run)), chance)


def _out_of_memory(run: Running, process: psutil.Process, chance: random.Random) -> str:
    """In a cgroup whose limit is too small for it, with dumps to make it take memory, until the kernel kills
    it."""
    name = f"harm-{run.root.parent.name}-{process.pid}"
    for place in memory_controllers():
        group = place / name
        with contextlib.suppress(OSError):
            group.mkdir()
            break
    else:
        return "no cgroup"
    run.undo.append(lambda: _remove_group(group))
    (group / "cgroup.procs").write_text(str(process.pid))
    v1 = (group / "memory.limit_in_bytes").exists()
    room = chance.randrange(64 << 10, 512 << 10)
    with contextlib.suppress(OSError):  # EBUSY: what it has counts already, and cannot be given back
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(room))
    end = time.monotonic() + 6.0
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        with contextlib.suppress(OSError, TimeoutError, psutil.Error):
            run.ask("/dump?deadline=1", wait=0.2)
    killed = [
        line
        for line in (group / ("memory.oom_control" if v1 else "memory.events")).read_text().splitlines()
        if line.startswith("oom_kill ")
    ]
    return f"{process.pid} with {room >> 10} KiB more, {' '.join(killed)}"


def _remove_group(group: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


# --- diag's own files
# ------------------------------------------------------------------------------------------


def own_copy(root: Path, env: dict[str, str]) -> Undo:
    """diag from a copy of its package, which the trial may take away."""
    folder = root.parent / "installed"
    shutil.copytree(REPOSITORY / "diag", folder / "diag", ignore=shutil.ignore_patterns("__pycache__"))
    # -P and a path of its own: `-m diag` from the repository would find that one, whatever PYTHONPATH says.
    env["PYTHONPATH"] = os.pathsep.join(
        [str(folder), *[path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]]
    )
    env["HARM_CWD"] = str(folder)
    return lambda: None


def remove_package(run: Running, chance: random.Random) -> str:
    """As an upgrade or `pip uninstall` does it under a job that runs."""
    package = run.root.parent / "installed" / "diag"
    if chance.random() < 0.5:
        package.rename(package.with_name("diag-before"))
        told = "moved away"
    else:
        shutil.rmtree(package)
        told = "removed"
    if chance.random() < 0.5:
        package.mkdir()
        # another version that has none of the modules
        (package / "__init__.py").write_text("__version__ = '99'\n")
        told += ", another one in its place"
    if chance.random() < 0.5:
        told += "; " + kill_one(run, chance)
    return f"diag's package {told}"


# --- a pid that is given to another
# ------------------------------------------------------------------------------


def own_pids(folder: Path) -> tuple[str, ...]:
    """A pid namespace, in which a process may choose the next pid. A shell is pid 1, as PID 1 cannot die of a
    signal."""
    return (
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
        "sh",
        "-c",
        '"$@"; exit $?',
        "sh",
    )


def reuse_pid(run: Running, chance: random.Random) -> str:
    """The rank that ends does so while its sidecar is stopped, killed or well, and a stranger gets its pid."""
    # the other ranks may have ended by now; this one waits to be told
    with contextlib.suppress(TimeoutError):
        run.until_sidecars(5.0)
    how = chance.choice(["stopped", "killed", "well", "killed after"])
    found = sidecars(run)
    if how == "stopped":
        for process in found:
            send(process, signal.SIGSTOP)
    elif how == "killed":
        for process in found:
            send(process, signal.SIGKILL)
    (run.results / "swap").touch()
    run.until((run.results / "swapped").exists)
    if how == "killed after":
        for process in sidecars(run):
            send(process, signal.SIGKILL)
    if how == "stopped":
        run.pause(chance.uniform(0.0, 1.0))
        for process in found:
            send(process, signal.SIGCONT)
    for _ in range(3):
        run.ask("/dump?deadline=2", wait=1.0)
    return f"pid given to another, sidecars {how}"


def stranger_unharmed(run: Running, outcome: Outcome) -> None:
    if not (run.results / "swapped").exists():
        outcome.did += "; the pid was not had"
        return
    if not (run.results / "stranger").exists():
        outcome.wrong.append("the process that got a rank's pid did not live")
    done = subprocess.run(f"zcat -f {run.run_dir()}/journal-*", shell=True, capture_output=True, check=False)
    if b"a_stranger_waits" in done.stdout:
        outcome.wrong.append("the stack of a process that only has a rank's old pid was read")
