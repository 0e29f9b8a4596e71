"""Who asks: clients of the HTTP port that do not read, do not ask to the end, or ask too much."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

from tests.labs.harm.trial import Running


def deaf_listeners(run: Running, chance: random.Random) -> str:
    address = run.address()
    count = chance.randrange(1, 40)
    for _ in range(count):
        path = chance.choice([b"/events", b"/events", b"/state", b"/dump"])
        run.keep(_ask(address, path, small=True))
    return f"{count} listeners that never read"


def slow_listeners(run: Running, chance: random.Random) -> str:
    """Byte by byte, while ranks come and go and dumps change much at once; some go away in the middle of an
    event."""
    address = run.address()
    listeners = [_ask(address, b"/events", small=True) for _ in range(chance.randrange(2, 30))]
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            for each in listeners:
                with contextlib.suppress(OSError):
                    each.setblocking(False)
                    each.recv(chance.choice([1, 1, 7, 200]))
            over.wait(0.05)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    for _ in range(6):
        with contextlib.suppress(OSError):
            run.keep(_ask(address, b"/dump?deadline=1", small=False))
        run.pause(0.5)
        if chance.random() < 0.5 and len(listeners) > 1:
            listeners.pop().close()
    for each in listeners:
        run.keep(each)
    run.pause(30.0)
    over.set()
    thread.join(5)
    return f"{len(listeners)} listeners that read some bytes a second"


def half_requests(run: Running, chance: random.Random) -> str:
    address = run.address()
    for _ in range(80):
        talker = socket.create_connection(address, timeout=5)
        with contextlib.suppress(OSError):
            garbage = chance.randbytes(chance.randrange(1, 3000))
            talker.sendall(garbage if chance.random() < 0.5 else b"GET /state HTTP/1.1\r\nHos")
        run.keep(talker)
    return "80 connections with garbage or half a request"


def dumps(run: Running, chance: random.Random) -> str:
    address = run.address()
    for _ in range(chance.randrange(2, 12)):
        run.keep(_ask(address, b"/dump?deadline=2", small=False))
        time.sleep(chance.uniform(0, 0.05))
    return "many dumps at once"


def _ask(address: tuple[str, int], path: bytes, *, small: bool) -> socket.socket:
    asker = socket.create_connection(address, timeout=5)
    if small:
        asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    asker.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return asker
