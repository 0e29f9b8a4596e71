"""What a thread is in a call with, by the variables of its frame: the peer of a send or receive, an argument of torch's
own Python function; the queue, event or future that a method of the standard library waits for.

gloo's recorder keeps no send and no receive, and all of a rank's peers share one loop thread, so that neither shows whom
a rank waits for; the frame of the call does.
"""

from __future__ import annotations

import re
import struct

from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.objects import LEAST_ADDRESS, Objects

TORCH = "/torch/distributed/"
_FILE = "torch/distributed/distributed_c10d.py"
_CALL = re.compile(
    r"(send|recv)(?:_object_list)?"
)  # torch 1.8-2.13: those that return when the message is there
_PEER = {
    "send": b"dst",
    "recv": b"src",
}  # a rank of the job, whatever the group; absent where a group's rank was given
# Methods that wait for what their object gets from another thread or process: its address tells two of a kind apart,
# and is the same in a fork.
_WAITS = re.compile(
    r"(?:queue|multiprocessing/queues)\.py:\w*Queue\.(?:get|put|join)$"
    r"|threading\.py:(?:Event\.wait|Barrier\.wait|Semaphore\.acquire)$|futures/_base\.py:Future\.result$"
)
CO_NAMES = 32  # of PyCodeObject, 3.11-3.13: what it looks up in modules and objects
_NAME = 40  # bytes of a name that are looked at, behind the head


def call_of(name: str, file: str) -> str:
    """ "send" or "recv" of a code object that is one, else "".

    >>> call_of("recv_object_list", "/env/torch/distributed/distributed_c10d.py"), call_of("send", "/app/mail.py")
    ('recv', '')
    """
    match = _CALL.fullmatch(name) if file.endswith(_FILE) else None
    return match[1] if match else ""


def awaits_object(name: str, file: str) -> bool:
    """
    >>> awaits_object("Queue.get", "/usr/lib/python3.11/queue.py"), awaits_object("Queue.get", "/app/mail.py")
    (True, False)
    """
    return _WAITS.search(f"{file}:{name}") is not None


def slots_of(objects: Objects, code: int, call: str) -> tuple[int, ...]:
    """Which of the code's variables are the peer and, where it takes one, the tag. Raises Torn for other code."""
    texts = _names(objects, code + objects.layout.code_names)
    if _PEER[call] not in texts:
        raise Torn("not the arguments of a send or receive")
    return tuple(texts.index(name) for name in (_PEER[call], b"tag") if name in texts)


def uses_isend(objects: Objects, code: int) -> bool:
    """It calls something of that name: then what it sends need not have arrived when it goes on. Raises Torn."""
    return any(b"isend" in name for name in _names(objects, code + CO_NAMES))


def _names(objects: Objects, place: int) -> list[bytes]:
    start = objects.layout.ascii_size
    return [objects.memory.some(item + start, _NAME).partition(b"\0")[0] for item in objects.names_at(place)]


def exchange_of(objects: Objects, frame: bytes, slots: tuple[int, ...]) -> tuple[int, int] | None:
    """Peer and tag by the frame's variables, which `frame` holds from its begin."""
    values = [struct.unpack_from("<Q", frame, objects.layout.frame_locals + 8 * slot)[0] for slot in slots]
    peer, *tags = (_number(objects, value) for value in values)
    return None if peer is None else (peer, next(iter(tags), 0) or 0)


def _number(objects: Objects, address: int) -> int | None:
    """A rank or a tag; None for what is no such number, as None."""
    if address < LEAST_ADDRESS or objects.memory.word(address + 8) != objects.symbols.get("PyLong_Type"):
        return None
    number = objects.integer(address)
    return number if number is not None and 0 <= number < 1 << 30 else None
