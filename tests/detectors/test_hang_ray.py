"""Jobs on Ray: who is waited for, and who is idle by design."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.detectors import make_detectors
from diag.model.observations import RankFound, RayDeath, RayDemand, RayProcess, RaySeen, RunEnded, ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.facts import ALL_REDUCE, Story, found, frames, pid_of, stack, tree

RAY = "/opt/venv/lib/python3.11/site-packages/ray/"
LOOP = (f"<module> {RAY}_private/workers/default_worker.py:323", f"main_loop {RAY}_private/worker.py:1069")
TASK = (*LOOP, f"actor_method_executor {RAY}_private/function_manager.py:740")
GET = (
    f"wrapper {RAY}_private/client_mode_hook.py:134",
    f"get {RAY}_private/worker.py:3009",
    f"get_objects {RAY}_private/worker.py:1007",
)
DRIVER, ROLLOUT, SERVICE = 50, 60, 70
JUDGE = RayDemand(False, ((("judge", 1.0),),))
CPUS = (("CPU", 2.0, 4.0),)
ASKS = Wait(
    "tcp_receive",
    fd=40,
    local="127.0.0.1:4",
    peer="127.0.0.1:8000",
    silent_seconds=9.0,
    others=(Party(SERVICE, 0, "python judge.py"),),
)
SLEEPS = Wait("sleep", seconds=3000.0, timed=True)


def threads(pid: int, *lines: str) -> tuple[ThreadStack, ...]:
    return (ThreadStack(pid, "MainThread", frames(*lines)),)


def waits(pid: int, wait: Wait, cpu: float = 0.0, *others: ProcessWaits) -> WaitsRead:
    one = ProcessWaits(pid, 1, "", (ThreadWait(pid, "MainThread", "S", "", wait, cpu, same=not cpu),))
    return WaitsRead(None, pid, 0.2, (one, *others))


def driver(*lines: str) -> RayProcess:
    return RayProcess(
        DRIVER, "driver", "python ppo.py", threads=threads(DRIVER, "main /srv/ppo.py:95", *lines)
    )


def worker(pid: int, name: str, method: str, *lines: str, read: WaitsRead | None = None) -> RayProcess:
    return RayProcess(pid, "worker", f"ray::{name}", name, method, threads(pid, *lines), read)


def rollout(wait: Wait = ASKS, cpu: float = 0.0, service: Wait = SLEEPS) -> RayProcess:
    asked = ProcessWaits(
        SERVICE, 1, "python judge.py", (ThreadWait(SERVICE, "MainThread", "S", "", service),), job=False
    )
    read = waits(ROLLOUT, wait, cpu, asked)
    return worker(
        ROLLOUT,
        "Rollout",
        "generate",
        *TASK,
        "score /srv/ppo.py:58",
        "readinto /opt/python/lib/python3.11/socket.py:706",
        read=read,
    )


def service(cpu: float = 0.0) -> RayProcess:
    lines = ("<module> /srv/judge.py:40", "judge /srv/judge.py:7")
    return RayProcess(
        SERVICE,
        "service",
        "python judge.py",
        threads=threads(SERVICE, *lines),
        waits=waits(SERVICE, SLEEPS, cpu),
    )


def idle(rank: int) -> RayProcess:
    return worker(pid_of(rank), "Trainer", "", *LOOP)


def story_of(
    *processes: RayProcess,
    seconds: float = 200.0,
    ranks: int = 2,
    demands: tuple[RayDemand, ...] = (),
    lines: tuple[tuple[str, ...], ...] = (LOOP, LOOP),
) -> Story:
    story = Story(make_detectors(), world=ranks)
    for _ in range(int(seconds // 10)):
        for rank in range(ranks):
            story.tell(stack(rank, 0.0, lines[rank]), tree(rank, 0.0))
        story.tell(RaySeen(None, "/tmp/ray/session_1", processes, demands, CPUS))
        story.wait(10)
    return story


def hangs(story: Story) -> list[str]:
    return [one.cause for one in story.findings() if one.id in ("hang", "held-up")]


def test_driver_waits_for_the_rollout_and_that_for_the_service_at_the_end() -> None:
    held = story_of(driver(*GET), rollout(), service(), idle(0), idle(1)).hang()

    assert (held.cause, held.ranks, held.waiting_ranks) == ("ray_service_silent", (), ())
    assert held.summary.startswith(
        "the driver (pid 50) has waited in ray.get (from main, /srv/ppo.py:95) for "
    )
    assert held.summary.endswith(
        ": for Rollout.generate (pid 60, in score (/srv/ppo.py:58)), which waits for data from 127.0.0.1:8000, pid 70 "
        "(`python judge.py`) (fd 40; the last byte came 9 s ago), which sleeps (50 min left), in judge (/srv/judge.py:7)"
    )


def test_actors_between_two_calls_are_not_blamed_for_a_driver_that_is_elsewhere() -> None:
    assert hangs(story_of(driver(), idle(0), idle(1), seconds=900)) == []


def test_rollout_that_computes_is_waited_for_however_long() -> None:
    busy = rollout(Wait("running"), cpu=0.9)

    assert hangs(story_of(driver(*GET), busy, idle(0), idle(1), seconds=3600)) == []


def test_service_that_computes_is_waited_for_however_long() -> None:
    assert hangs(story_of(driver(*GET), rollout(), service(cpu=0.8), idle(0), idle(1), seconds=3600)) == []


def test_which_of_two_methods_at_work_is_waited_for_is_not_guessed() -> None:
    other = worker(61, "Critic", "score", *TASK, "score /srv/critic.py:3", read=waits(61, SLEEPS))

    assert hangs(story_of(driver(*GET), rollout(), other, service(), idle(0), idle(1), seconds=900)) == []


def test_async_actor_of_which_no_line_is_seen_is_not_taken_for_idle() -> None:
    asynchronous = worker(61, "Server", "generate", *LOOP)

    assert hangs(story_of(driver(*GET), asynchronous, idle(0), idle(1), seconds=900)) == []


def test_what_is_not_placed_is_said_beside_a_controller_of_which_no_line_is_seen() -> None:
    controller = worker(61, "TrainController", "run", *LOOP)
    held = story_of(driver(*GET), controller, demands=(JUDGE,), ranks=0, lines=()).hang()

    assert held.cause == "ray_has_no_room"
    assert held.summary.endswith(
        ": for TrainController.run (pid 61), and Ray has not placed an actor or task that needs {judge: 1} (the cluster has no judge)"
    )
    busy = replace(controller, waits=waits(61, Wait("running"), 0.9))
    assert hangs(story_of(driver(*GET), busy, demands=(JUDGE,), ranks=0, lines=(), seconds=900)) == []


def test_method_that_has_not_returned_is_named_with_its_line_after_five_minutes() -> None:
    stuck = worker(61, "Critic", "score", *TASK, "score /srv/critic.py:3", read=waits(61, Wait("condition")))

    assert hangs(story_of(driver(*GET), stuck, idle(0), idle(1), seconds=290)) == []
    held = story_of(driver(*GET), stuck, idle(0), idle(1), seconds=400).hang()
    assert held.cause == "ray_call_stands"
    assert (
        "for Critic.score (pid 61, in score (/srv/critic.py:3)), which waits on a lock or condition"
        in held.summary
    )


def test_what_is_not_placed_is_said_where_nobody_is_at_work() -> None:
    story = story_of(driver(*GET), demands=(JUDGE,), ranks=0, lines=())

    held = story.hang()
    assert (held.cause, held.klass) == ("ray_has_no_room", "resource_wait")
    assert held.summary.endswith(
        "for an actor or task that needs {judge: 1} (the cluster has no judge): Ray has not placed it"
    )
    assert any(one.excerpt == "Ray's status: 2 of 4 CPU in use" for one in held.evidence)


def test_pending_demand_holds_nobody_up_while_a_method_is_at_work() -> None:
    assert (
        hangs(
            story_of(
                driver(*GET),
                rollout(Wait("running"), cpu=0.9),
                demands=(JUDGE,),
                ranks=0,
                lines=(),
                seconds=900,
            )
        )
        == []
    )


def test_driver_that_waits_and_was_taken_for_a_rank_is_none() -> None:
    story = Story(make_detectors(), world=0)
    place = replace(found(0, 1).placement, pid=DRIVER, launcher="local")
    story.tell(RankFound(0, place, "python ppo.py", distributed=False))
    for _ in range(60):
        story.tell(
            replace(stack(0, 0.0, ("main /srv/ppo.py:95", *GET)), pid=DRIVER),
            RaySeen(None, "s", (driver(*GET), rollout(Wait("running"), cpu=0.9))),
        )
        story.wait(10)

    assert hangs(story) == []


def test_actor_whose_call_has_returned_is_what_its_peer_waits_for() -> None:
    at_work = worker(pid_of(0), "Trainer", "fit", *TASK, *ALL_REDUCE)

    held = story_of(driver(*GET), at_work, idle(1), lines=((*TASK, *ALL_REDUCE), LOOP)).hang()

    assert (held.cause, held.klass, held.ranks, held.waiting_ranks) == (
        "ray_actor_left",
        "peer_not_joined",
        (1,),
        (0,),
    )
    assert "rank 1 has been between two calls of Ray for" in held.summary
    assert "the actor Trainer (pid 1001) runs no method: its last call has returned" in held.summary


def test_rank_that_waits_for_a_task_without_room_is_told_from_one_in_its_own_code() -> None:
    waits_too = worker(pid_of(0), "Trainer", "fit", *TASK, "fit /srv/train.py:67", *GET)
    peer = worker(pid_of(1), "Trainer", "fit", *TASK, *ALL_REDUCE)
    lines = ((*TASK, "fit /srv/train.py:67", *GET), (*TASK, *ALL_REDUCE))

    held = story_of(
        driver(*GET), waits_too, peer, demands=(RayDemand(False, ((("CPU", 1.0),),)),), lines=lines
    ).hang()

    assert (held.cause, held.ranks, held.waiting_ranks) == ("ray_has_no_room", (0,), (1,))
    assert (
        ": for an actor or task that needs {CPU: 1}: Ray has not placed it; rank 1 waits in all_reduce"
        in held.summary
    )


@pytest.mark.parametrize(
    ("how", "cause"),
    [("killed", "ray_killed"), ("memory", "ray_memory"), ("job_over", "ray_job_over"), ("crashed", "exit_1")],
)
def test_who_ended_an_actor_is_told_by_rays_logs(how: str, cause: str) -> None:
    story = Story(make_detectors())
    story.tell(RaySeen(None, "s", (), deaths=(RayDeath(pid_of(1), how, True, "raylet says so"),)))
    story.exit(1, code=1)
    story.wait(5)

    died = story.the("rank-died")
    assert (died.cause, died.ranks) == (cause, (1,))
    assert ("; Ray starts the actor again" in died.summary) is (how != "crashed")
    assert any(one.kind == "ray" and one.excerpt == "raylet says so" for one in died.evidence)


def died(story: Story) -> list[str]:
    return [one.cause for one in story.findings() if one.id == "rank-died"]


def workers_of_ray(*deaths: RayDeath, world: int = 2) -> Story:
    """Its ranks are seen to be workers, and rank 1 has just ended with exit code 1."""
    story = Story(make_detectors(), world=world)
    story.tell(RaySeen(None, "s", tuple(idle(rank) for rank in range(world))))
    for rank in range(world):
        comm = replace(tree(rank, 0.0).main, comm="ray::Trainer.fi")
        story.tell(replace(tree(rank, 0.0), main=comm))
    story.wait(1)
    story.exit(1, code=1)
    if deaths:
        story.tell(RaySeen(None, "s", (), deaths=deaths))
    return story


def test_actors_that_ray_ends_after_a_training_that_went_well_have_not_died() -> None:
    story = workers_of_ray(RayDeath(pid_of(0), "killed"), RayDeath(pid_of(1), "killed"))
    story.exit(0, code=1)
    story.wait(60)

    assert died(story) == []


def test_actor_that_ray_ended_while_its_peer_lives_on_is_told() -> None:
    story = workers_of_ray(RayDeath(pid_of(1), "killed"))
    story.wait(5)
    assert died(story) == []
    story.wait(20)

    assert died(story) == ["ray_killed"]


def test_actor_that_ray_ended_is_told_where_the_job_has_failed() -> None:
    story = workers_of_ray(RayDeath(pid_of(0), "job_over"), RayDeath(pid_of(1), "killed"))
    story.exit(0, code=1)
    story.tell(RunEnded(None, 1))
    story.wait(5)

    assert died(story) == ["ray_killed"]
    assert "likewise" not in story.the("rank-died").summary  # rank 0's actor was ended for another reason


def test_logs_of_ray_are_read_before_a_worker_is_said_to_have_failed() -> None:
    story = workers_of_ray()
    story.wait(5)
    assert died(story) == []
    story.tell(RaySeen(None, "s", ()))
    story.wait(1)

    assert died(story) == ["exit_1"]
