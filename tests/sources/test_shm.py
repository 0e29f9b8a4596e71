from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import SharedMemory, Unparsed
from diag.sources.host.shm import parse, read
from diag.text.errors import SourceUnavailable


def test_shared_memory_of_a_process_is_what_its_own_root_shows() -> None:
    payload = read(os.getpid())

    (found,) = parse(Record("shm", payload, rank=3))

    expected = os.statvfs("/dev/shm")
    assert payload["view"] == "rank"
    assert isinstance(found, SharedMemory)
    assert (found.rank, found.size_bytes) == (3, expected.f_blocks * expected.f_frsize)
    assert 0 <= found.available_bytes <= found.size_bytes


def test_process_that_is_gone_is_answered_by_our_own_view(tmp_path: Path) -> None:
    payload = read(1, root=tmp_path)

    assert payload["view"] == "own"


def test_process_without_shared_memory_is_not_answered_by_ours(tmp_path: Path) -> None:
    (tmp_path / "1" / "root" / "dev").mkdir(parents=True)

    with pytest.raises(SourceUnavailable) as failed:
        read(1, root=tmp_path)

    assert failed.value.reason == "process 1 has no /dev/shm"
    assert "tmpfs" in failed.value.remedy


def test_machine_where_nothing_can_be_seen_says_why(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable) as failed:
        read(1, root=tmp_path, own=tmp_path / "none")

    assert "No such file" in failed.value.reason
    assert failed.value.remedy


def test_sixty_four_megabytes_of_a_container_are_read_as_such() -> None:
    # statvfs of the default /dev/shm of Docker (64 MiB), full but for 4 MiB
    payload = {"view": "rank", "frsize": 4096, "blocks": 16384, "bavail": 1024}

    (found,) = parse(Record("shm", payload))

    assert found == SharedMemory(None, 64 << 20, 4 << 20)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=60)
@given(JSON | st.fixed_dictionaries({}, optional={"frsize": JSON, "blocks": JSON, "bavail": JSON}))
def test_parse_raises_for_nothing(payload: Any) -> None:
    (found,) = parse(Record("shm", payload))

    assert isinstance(found, (SharedMemory, Unparsed))
