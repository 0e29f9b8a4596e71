"""What is read of Ray: its processes by its files, what is pending, who ended a worker. The lines are Ray's own, 2.60."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import RayDeath, RayDemand, RaySeen
from diag.sources.host.job_files import Files
from diag.sources.ray import SOURCE, Session, parse
from diag.sources.ray.logs import Growing, last_status
from diag.sources.ray.sessions import session_of, sessions

WORKER, OTHER = "32267b6bcee6c9f7d964", "8ad91e5e2cd0259f6d4c"
STATUS = """
Node status
---------------------------------------------------------------
Active:
 1 node_444cbce6cb37438504ac92b38eb113f3a33a809270acb611d72a83e2
Resources
---------------------------------------------------------------
Total Usage:
 2.0/4.0 CPU (2.0 used of 4.0 reserved in placement groups)
 0B/19.09GiB memory
 0B/120.00MiB object_store_memory

From request_resources:
 (none)
Pending Demands:
"""
GROUP = " {'CPU': 2.0} * 3 (PACK): 1+ pending placement groups"
ACTOR = " {'judge': 1.0}: 1+ pending tasks/actors"
AUTOSCALER = "2026-11-27 18:41:11,345\tINFO autoscaler.py:469 -- The autoscaler took 0.001 seconds to complete the update iteration.\n"
HEAD = "2026-11-27 18:41:11,344\tINFO autoscaler.py:408 -- \n======== Autoscaler status: 2026-11-27 18:41:11.344855 ========"
KILLED = (
    "[2026-11-27 18:39:23,581 I 16795 16795] (raylet) node_manager.cc:3647: Received KillLocalActor RPC "
    f"worker_id={WORKER} actor_id=162a7abc342b9dde4a800c1501000000"
)
MEMORY = (
    f"[2026-11-27 18:44:14,707 W 3411 3411] (gcs_server) gcs_actor_manager.cc:1233: Worker {OTHER} on node 341da02f exits, "
    f"type=NODE_OUT_OF_MEMORY, has creation_task_exception = 0 worker_id={OTHER}"
)
AGAIN = (
    f"[2026-11-27 18:44:14,710 I 3411 3411] (gcs_server) gcs_actor_manager.cc:1515: Actor is failed on worker {OTHER} at node "
    "341da02f, need_reschedule = 1, death context type = OOMContext, remaining_restarts = 0"
)


def seen(**payload: object) -> RaySeen:
    (fact,) = parse(Record(SOURCE, {"session": "/tmp/ray/session_1", **payload}))
    assert isinstance(fact, RaySeen)
    return fact


def test_worker_is_known_by_its_title_between_two_calls_too() -> None:
    workers = {
        "7": "ray::Trainer.fit",
        "8": "ray::Trainer",
        "9": "ray::IDLE",
        "10": "python default_worker.py",
    }

    found = seen(workers=workers, drivers={"1": "python ppo.py"}, daemons={"2": "/opt/ray/raylet"})

    assert [(one.pid, one.kind, one.task) for one in found.processes] == [
        (1, "driver", ""), (7, "worker", "Trainer.fit"), (8, "worker", "Trainer"), (9, "worker", ""), (10, "worker", ""),
        (2, "daemon", ""),
    ]  # fmt: skip


def test_pending_group_and_actor_are_read_with_what_there_is() -> None:
    found = seen(status=f"{STATUS}{GROUP}\n{ACTOR}")

    assert found.demands == (
        RayDemand(True, ((("CPU", 2.0),),) * 3, "PACK"),
        RayDemand(False, ((("judge", 1.0),),)),
    )
    assert found.totals == (("CPU", 2.0, 4.0),)


def test_nothing_is_pending_where_the_status_says_so() -> None:
    assert seen(status=f"{STATUS} (no resource demands)").demands == ()
    assert seen(status="").demands == ()


def test_whoever_ray_killed_is_known_by_its_first_line_and_whether_it_comes_again() -> None:
    found = seen(ended={"70": WORKER, "71": OTHER}, lines=[KILLED, MEMORY, AGAIN])

    assert found.deaths == (RayDeath(70, "killed", None, KILLED), RayDeath(71, "memory", True, MEMORY))


def test_worker_that_ended_by_itself_was_not_killed_by_ray() -> None:
    line = f"gcs_actor_manager.cc:1233: Worker {WORKER} on node 1 exits, type=SYSTEM_ERROR, has creation_task_exception = 0"

    assert [one.how for one in seen(ended={"70": WORKER}, lines=[line]).deaths] == ["crashed"]
    assert seen(ended={}, lines=[KILLED]).deaths == ()


@pytest.mark.parametrize(
    "payload", [{"drivers": 3}, {"workers": {"x": 1}}, {"stacks": [], "waits": 7, "lines": [None]}]
)
def test_damaged_reading_makes_no_error(payload: dict[str, object]) -> None:
    [*parse(Record(SOURCE, {"session": "s", **payload}))]


def test_last_whole_status_counts(tmp_path: Path) -> None:
    log = tmp_path / "monitor.log"
    log.write_text(
        f"{HEAD}{STATUS}{GROUP}\n{AUTOSCALER}{HEAD}{STATUS}{ACTOR}\n{AUTOSCALER}{HEAD}\nNode status"
    )

    assert last_status(str(log), Files()).endswith(ACTOR.strip())
    assert last_status(str(tmp_path / "none"), Files()) == ""


def test_lines_about_ends_are_kept_as_the_file_grows(tmp_path: Path) -> None:
    log = Growing(str(tmp_path / "raylet.out"))
    log.read(Files())
    assert log.lines == []

    with open(log.path, "w", encoding="utf-8") as file:
        file.write(f"raylet starts\n{KILLED[:60]}")
        file.flush()
        log.read(Files())
        file.write(f"{KILLED[60:]}\n")
    log.read(Files())

    assert log.lines == [KILLED]


# --- who is of which session, by a folder like /proc


def opens(pid: int, proc: Path) -> Files:
    return Files()


class Machine:
    """A /proc of our own, and Ray's folder."""

    def __init__(self, root: Path) -> None:
        self.proc, self.session = root / "proc", root / "ray" / "session_1"
        (self.session / "logs").mkdir(parents=True)
        self.proc.mkdir()

    def process(self, pid: int, comm: str, argv: list[str], parent: int = 1, log: str = "") -> None:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({comm}) S {parent} {pid} 1 0 -1 " + "0 " * 12 + "0 77 0 0")
        (folder / "cmdline").write_text("\0".join([*argv, ""]))
        if log:
            path = self.session / "logs" / log
            path.touch()
            (folder / "fd" / "3").symlink_to(path)

    def raylet(self, pid: int, parent: int = 1) -> None:
        self.process(pid, "raylet", ["raylet", f"--raylet_socket_name={self.session}/sockets/raylet"], parent)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_driver_is_found_with_its_ray_also_where_that_was_started_before(machine: Machine) -> None:
    machine.raylet(50)
    machine.process(60, "python", ["python", "ppo.py"], log=f"python-core-driver-01000000{'f' * 40}_60.log")
    machine.process(70, "ray::Trainer", ["ray::Trainer"], 50, log=f"python-core-worker-{WORKER}_70.log")

    found = session_of((60,), machine.proc, opens)

    assert found == (Session(str(machine.session), 50), 60)
    members = found[0].members()
    assert (members.drivers, members.workers) == ((60,), (70,))
    assert found[0].workers_of(60) == [70]


def test_ray_below_the_command_is_found_by_its_raylet(machine: Machine) -> None:
    machine.process(60, "python", ["python", "ppo.py"], log=f"python-core-driver-01000000{'f' * 40}_60.log")
    machine.raylet(50, parent=60)

    assert session_of((60, 50), machine.proc, opens) == (Session(str(machine.session), 50), 60)


def test_program_of_rays_own_that_connects_as_a_driver_does_is_none(machine: Machine) -> None:
    machine.raylet(50)
    own = ["python", "/opt/venv/lib/python3.11/site-packages/ray/dashboard/dashboard.py"]
    machine.process(61, "python", own, log=f"python-core-driver-01000000{'f' * 40}_61.log")

    (session,) = sessions(machine.proc, opens)

    assert session.members().drivers == ()


def test_pid_of_an_ended_worker_that_another_process_has_now_is_no_worker(machine: Machine) -> None:
    machine.raylet(50)
    machine.process(70, "bash", ["bash"])
    (machine.session / "logs" / f"python-core-worker-{WORKER}_70.log").touch()
    (machine.session / "logs" / f"python-core-worker-{OTHER}_71.log").touch()

    (session,) = sessions(machine.proc, opens)
    members = session.members()

    assert members.workers == ()
    assert members.names[71] == OTHER


def test_worker_of_another_drivers_job_is_left_out(machine: Machine) -> None:
    machine.raylet(50)
    for driver, job in ((60, "01000000"), (61, "02000000")):
        machine.process(
            driver, "python", ["python", "a.py"], log=f"python-core-driver-{job}{'f' * 40}_{driver}.log"
        )
    for worker, name, job in ((70, WORKER, "01000000"), (71, OTHER, "02000000")):
        machine.process(worker, "ray::A", ["ray::A"], 50, log=f"python-core-worker-{name}_{worker}.log")
        (machine.session / "logs" / f"worker-{name}-ffffffff-{worker}.out").write_text(
            f":job_id:{job}\n:actor_name:A\n"
        )

    (session,) = sessions(machine.proc, opens)

    assert (session.workers_of(60), session.workers_of(61)) == ([70], [71])


def test_without_ray_nothing_is_found(machine: Machine) -> None:
    machine.process(60, "python", ["python", "train.py"])

    assert session_of((60,), machine.proc, opens) is None
    assert [*sessions(machine.proc, opens)] == []
