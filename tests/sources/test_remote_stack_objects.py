"""Which queue, event or future a thread waits for, read from the frame of the method that does."""

from __future__ import annotations

from diag.model.observations import StackSample
from diag.sources.stacks import remote_stack
from diag.state.python_waits import waits_of
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import children_of, each_python, sample, until_asleep

PROGRAM = """
import multiprocessing, os, queue, sys, threading
one, two, event, shared = queue.Queue(), queue.Queue(), threading.Event(), multiprocessing.get_context("fork").Queue()
if not os.fork(): shared.get()
for name, wait in (("a", one.get), ("b", one.get), ("c", two.get), ("d", event.wait), ("e", shared.get)):
    threading.Thread(target=wait, name=name, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def objects(found: StackSample) -> dict[str, tuple[str, int]]:
    waits = waits_of(found)
    return {
        one.name: (waits[one.thread_id].kind, waits[one.thread_id].object)
        for one in found.threads
        if one.thread_id in waits
    }


@each_python
def test_threads_at_one_queue_are_told_from_one_at_another_also_in_a_fork(python: str) -> None:
    with Target(PROGRAM, plain_env(), python=python) as rank:
        (child,) = children_of(rank.pid)
        until_asleep(rank.pid, child)
        stacks = remote_stack.RemoteStacks()
        found = objects(sample(stacks.dump(rank.pid, 20.0)))
        forked = objects(sample(stacks.dump(child, 20.0, parent_pid=rank.pid)))

    assert {name: kind for name, (kind, _) in found.items()} == {
        "a": "queue_get", "b": "queue_get", "c": "queue_get", "d": "event", "e": "channel_get",
    }  # fmt: skip
    assert found["a"] == found["b"] and found["a"][1] > 4096
    assert len({address for _, address in found.values()}) == 4
    assert list(forked.values()) == [found["e"]]
