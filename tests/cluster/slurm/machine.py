"""A Slurm of our own on this machine: munge, a controller and two nodes, with its own configuration, ports
and folders.

Debian builds slurmd with several nodes a machine in mind (`slurmd -N NAME`), so two nodes cost two processes.
Nothing of it touches a Slurm that is already here: SLURM_CONF says where ours is, and only in the environment
of what we start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue")
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_CONF = """\
ClusterName=diagtest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmdSpoolDir={base}/spool/%n
StateSaveLocation={base}/state
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerParameters=sched_interval=5
KillWait=20
NodeName=DEFAULT CPUs=2 RealMemory=4000 Gres=gpu:8 State=UNKNOWN
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}]
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no Slurm can be started here, or nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurmd slurmctld slurm-client munge (make test-cluster does so)"
    if os.getuid() != 0:
        return "needs root: munged and slurmd are started"
    return ""


class Cluster:
    """The running daemons; `submit` starts a job."""

    def __init__(self, base: Path, environment: dict[str, str]) -> None:
        self.base = base
        self.environment = environment

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**self.environment, **variables}
        return subprocess.run(words, capture_output=True, text=True, env=env, timeout=90, check=False)

    def submit(
        self, folder: Path, script: Path, options: Sequence[str], command: Sequence[str], **variables: str
    ) -> Job:
        """sbatch in `folder`, as somebody would type it there."""
        done = subprocess.run(
            ["sbatch", "--parsable", *options, str(script), *command],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**self.environment, **variables},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Job(self, folder, done.stdout.strip())


class Job:
    def __init__(self, cluster: Cluster, folder: Path, number: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.number = number

    @property
    def log(self) -> str:
        """What Slurm wrote: of the batch script and, with a file a task, of the tasks."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob(f"train-{self.number}*.log"))
        )

    @property
    def evidence(self) -> Path:
        return self.folder / f"diag-{self.number}"

    def facts(self) -> dict[str, str]:
        """JobState, ExitCode and the like: `scontrol show job` in one line."""
        done = self.cluster.run("scontrol", "show", "job", "-o", self.number)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def until(self, condition: Callable[[], Any], seconds: float) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.3)
        raise AssertionError(
            f"not within {seconds:g} s ({self.facts().get('JobState')}); the log ends:\n{self.log[-4000:]}"
        )

    def ended(self, seconds: float) -> tuple[str, str]:
        """State and exit code of the ended job, its processes gone."""
        running = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        facts: dict[str, str] = self.until(
            lambda: facts if (facts := self.facts()).get("JobState", "PENDING") not in running else None,
            seconds,
        )
        return facts["JobState"], facts["ExitCode"]

    def processes(self) -> list[psutil.Process]:
        """What still runs of it, by the variable that each of its processes inherited."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == self.number and process.environ().get(
                    "SLURM_CONF", ""
                ).startswith(str(self.cluster.base)):
                    found.append(process)
        return found


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    # Below /tmp: a UNIX socket's path may have 107 characters, and munged wants parents that others cannot
    # write to.
    base = Path(tempfile.mkdtemp(prefix="diag-slurm-", dir="/tmp"))
    base.chmod(0o755)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        yield from _started(base, daemons)
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
        shutil.rmtree(base, ignore_errors=True)


def _started(base: Path, daemons: list[subprocess.Popen[bytes]]) -> Iterator[Cluster]:
    host = socket.gethostname().partition(".")[0]
    for name in ("munge", "state", "spool"):
        (base / name).mkdir(mode=0o755)
    (base / "munge" / "key").write_bytes(os.urandom(1024))
    (base / "munge" / "key").chmod(0o600)
    (base / "slurm.conf").write_text(_CONF.format(host=host, base=base, ports=_ports()))
    # Slurm counts them; that they are no devices it would only see with ConstrainDevices
    for number in range(8):
        (base / f"gpu{number}").touch()
    (base / "gres.conf").write_text(f"Name=gpu File={base}/gpu[0-7]\n")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "DIAG_"))
    }
    environment = {**kept, "PATH": _PATH, "SLURM_CONF": str(base / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def start(name: str, *words: str) -> None:
        with open(base / f"{name}.log", "wb") as log:
            daemons.append(
                subprocess.Popen([*words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
            )

    munge = base / "munge"
    start(
        "munged",
        "munged",
        "--foreground",
        f"--key-file={munge}/key",
        f"--socket={munge}/socket",
        f"--pid-file={munge}/pid",
        f"--log-file={munge}/log",
        f"--seed-file={munge}/seed",
        "--num-threads=2",
    )
    _until(base, (munge / "socket").exists, "munged has no socket")
    start("slurmctld", "slurmctld", "-D", "-c")
    for node in ("n1", "n2"):
        start(f"slurmd.{node}", "slurmd", "-D", "-N", node)
    found = Cluster(base, environment)
    _until(
        base,
        lambda: found.run("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle", "idle"],
        "the nodes are not idle",
    )
    try:
        yield found
    finally:
        jobs = found.run("squeue", "-h", "-o", "%i").stdout.split()
        if jobs:
            found.run("scancel", "--full", *jobs)
            with contextlib.suppress(AssertionError):
                _until(base, lambda: not found.run("squeue", "-h").stdout.strip(), "jobs do not end")


def _ports() -> tuple[int, int, int]:
    """Three free ports, the last two in a row, as slurm.conf wants them for two nodes of a machine."""
    for first in range(16817, 20000, 10):
        with contextlib.ExitStack() as stack:
            try:
                for port in (first, first + 1, first + 2):
                    stack.enter_context(socket.socket()).bind(("0.0.0.0", port))
            except OSError:
                continue
            return first, first + 1, first + 2
    raise AssertionError("no three free ports in a row")


def _until(base: Path, condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 40
    while not condition():
        if time.monotonic() > end:
            logs = "\n".join(
                f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
                for path in sorted(base.glob("*.log"))
            )
            raise AssertionError(f"{what}\n{logs}")
        time.sleep(0.2)
