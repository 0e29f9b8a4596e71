"""What comes to a rank over the connection that it waits at."""

from __future__ import annotations

from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.state.feeds import Feed, fed

PID = 7


def read(wait: Wait) -> WaitsRead:
    thread = ThreadWait(PID, "python", "S", "", wait, same=True)
    return WaitsRead(0, PID, 0.5, (ProcessWaits(PID, 1, "python train.py", (thread,)),))


def receive(received: int | None, peer: str = "10.0.0.5:443") -> WaitsRead:
    return read(Wait("tcp_receive", "recvfrom", 5, local="10.0.0.1:4", peer=peer, received_bytes=received))


def feed(*readings: tuple[float, WaitsRead]) -> Feed:
    found = None
    for at, one in readings:
        found = fed(found, one, at)
    assert found is not None
    return found


def test_bytes_are_counted_from_the_first_reading_on() -> None:
    found = feed((100.0, receive(5_000)), (130.0, receive(5_006)), (160.0, receive(5_012)))

    assert (found.bytes, found.at - found.since, found.worked_at) == (12, 60.0, 0.0)


def test_download_works_between_two_readings() -> None:
    assert feed((100.0, receive(0)), (110.0, receive(20_000)), (120.0, receive(20_001))).worked_at == 110.0


def test_reading_in_which_it_works_on_what_came_changes_nothing() -> None:
    before = feed((100.0, receive(0)), (110.0, receive(20_000)))

    assert fed(before, read(Wait("running")), 115.0) == before


def test_retry_over_a_new_connection_is_no_work() -> None:
    found = feed((100.0, receive(0)), (110.0, receive(90_000, "10.0.0.6:443")))

    assert (found.bytes, found.worked_at) == (0, 0.0)


def test_what_came_between_two_suspicions_is_no_part_of_the_wait() -> None:
    found = feed((100.0, receive(0)), (4_000.0, receive(9_000_000)))

    assert (found.bytes, found.since, found.worked_at) == (0, 4_000.0, 0.0)


def test_recording_without_the_count_feeds_nothing() -> None:
    assert fed(None, receive(None), 100.0) is None
