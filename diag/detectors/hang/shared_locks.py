"""Locks between processes that lie in memory which they share: a semaphore has no owner, and who else has that memory mapped may
be all that could give it back."""

from __future__ import annotations

from diag.detectors.hang.scene import Endless, Scene
from diag.model.observations.waits import ProcessWaits, ThreadWait
from diag.state.own_code import own_frames
from diag.state.stack_activity import format_frame
from diag.state.wait_chain import Step

_FRAMES = 2


def semaphores_in_turn(scene: Scene) -> Endless | None:
    """Everybody who has that memory mapped waits in it: the culprit for one semaphore, the others for another one that lies
    there, and nothing else of theirs could give one back."""
    wait = scene.last.wait
    shared = wait.shared
    if wait.kind != "semaphore" or wait.timed or shared is None or scene.may_act(scene.last):
        return None
    others = []
    for party in shared.by:
        process = scene.rank.process_waits(party.pid)
        thread = _waits_there(process, shared.memory) if process is not None else None
        if process is None or thread is None or scene.may_act(Step(process, thread)):
            return None
        others.append((process, thread))
    across = [one for one in others if _offset(one[1]) != shared.offset]
    if not across:
        return None
    clauses = [
        f"pid {process.pid} waits for another one there{_place(scene, process, thread)}"
        for process, thread in across[:_FRAMES]
    ]
    return Endless("semaphores_in_turn", " and ".join(clauses), shared.whole, tids=())


def _waits_there(process: ProcessWaits, memory: str) -> ThreadWait | None:
    found = [
        one for one in process.threads if one.wait.shared is not None and one.wait.shared.memory == memory
    ]
    return found[0] if len(found) == 1 and not found[0].wait.timed and not process.threads_left_out else None


def _offset(thread: ThreadWait) -> int:
    return thread.wait.shared.offset if thread.wait.shared is not None else 0


def _place(scene: Scene, process: ProcessWaits, thread: ThreadWait) -> str:
    """ ", in Ring._wait (ring.py:21) < Ring.put (ring.py:32)": where both wait in one function, who called it tells them apart."""
    stack = scene.rank.thread_stack(process.pid, thread.tid)
    frames = own_frames(stack.frames) if stack is not None else []
    shown = " < ".join(format_frame(one, scene.cwd) for one in reversed(frames[-_FRAMES:]))
    return f", in {shown}" if shown else ""
