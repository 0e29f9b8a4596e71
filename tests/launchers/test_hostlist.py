"""Slurm's host lists. The table is what `scontrol show hostnames` of Slurm 22.05.8 printed; a suffix behind a
bracket it refuses, and so does not write either, but people write it themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.launch.launchers.hostlist import MOST_HOSTS, BadHostlist, expand_hostlist

SCONTROL = shutil.which("scontrol")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[001-004,007],login1", "gpu001 gpu002 gpu003 gpu004 gpu007 login1"),
        ("r[0-1]n[01-02]", "r0n01 r0n02 r1n01 r1n02"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-011]", "n8 n9 n10 n11"),
        ("n[9-10]", "n9 n10"),
        ("n[001-1]", "n001"),
        ("n[00-1]", "n00 n01"),
        ("x[1-2][3-4]", "x13 x14 x23 x24"),
        ("[1-2]", "1 2"),
        ("a,,b", "a b"),
        (" a, b", "a b"),
        ("n[1-2],m[3-4]", "n1 n2 m3 m4"),
        ("gpu[1],gpu[1]", "gpu1 gpu1"),
        (
            "ip-10-0-[1-2]-7.ec2.internal",
            "ip-10-0-1-7.ec2.internal ip-10-0-2-7.ec2.internal",
        ),  # not by scontrol
        ("gpu[1-3]-ib", "gpu1-ib gpu2-ib gpu3-ib"),  # not by scontrol
        ("", ""),
    ],
)
def test_list_is_expanded(text: str, hosts: str) -> None:
    assert expand_hostlist(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    [
        "n[1-", "n]", "n1[2", "n[]", "n[1,]", "n[3-1]", "n[a-c]", "n[1-2-3]", "n[-2]", "n[[1]]", "n[1]]", "(null)", "a;rm",
        "n[1-\n", "bgl[000x133]", "gpu[\u0661-\u0662]" + "x",
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(BadHostlist):
        expand_hostlist(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-99999999]", "n[1-999999999999999999]", "n[1-9999999999999999999999]", "n[0-1]" * 17, "a[1-65536],b",
        "n[1-60000],m[1-60000]", "[0-65535]" * 1000, "n[1-65536]" + "[1-65536]" * 9000, "x" * 2_000_000,
    ],
)  # fmt: skip
def test_list_of_too_many_hosts_is_refused_before_it_is_made(text: str) -> None:
    with pytest.raises(BadHostlist):
        expand_hostlist(text)


def test_as_many_hosts_as_slurm_takes_in_one_range_are_taken() -> None:
    assert len(expand_hostlist("n[1-65536]")) == MOST_HOSTS


# One name: words and ranges in turn, with the hosts that are meant, made without any parsing.
NAMES = st.text("abz-", min_size=1, max_size=4).filter(lambda word: not word.startswith("-"))
RANGES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=3
)


def _written(name: str, ranges: list[tuple[int, int, int]]) -> tuple[str, list[str]]:
    texts, hosts = [], []
    for low, more, width in ranges:
        digits = len(str(low).zfill(width))
        texts.append(str(low).zfill(width) + (f"-{low + more}" if more else ""))
        hosts += [name + str(low + step).zfill(digits) for step in range(more + 1)]
    return f"{name}[{','.join(texts)}]", hosts


LISTS = st.lists(st.tuples(NAMES, RANGES), min_size=1, max_size=4)


@given(LISTS)
def test_what_was_written_comes_out(entries: list[tuple[str, list[tuple[int, int, int]]]]) -> None:
    written = [_written(*entry) for entry in entries]

    assert expand_hostlist(",".join(text for text, _ in written)) == tuple(
        host for _, hosts in written for host in hosts
    )


@given(st.text("ab019[]-,. x", max_size=40))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        hosts = expand_hostlist(text)
    except BadHostlist:
        return
    assert len(hosts) <= MOST_HOSTS
    assert all(host and "[" not in host and "," not in host for host in hosts)


@pytest.mark.skipif(SCONTROL is None, reason="slurm-client is not installed")
@settings(max_examples=60, deadline=None)
@given(LISTS)
def test_slurm_itself_expands_the_same(entries: list[tuple[str, list[tuple[int, int, int]]]]) -> None:
    text = ",".join(_written(*entry)[0] for entry in entries)
    conf = Path(__file__).with_name("slurm.conf")

    said = subprocess.run(
        [str(SCONTROL), "show", "hostnames", text],
        env={"SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.split() == list(expand_hostlist(text))
