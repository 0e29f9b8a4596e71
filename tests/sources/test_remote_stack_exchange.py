"""Whom a rank sends to or receives from, read from the frame of torch's function in another process's memory."""

from __future__ import annotations

from typing import Any

import pytest

from diag.model.observations import Exchange
from diag.sources.stacks import remote_stack
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import each_python, sample, until_asleep

# The arguments of torch 2.13; the file is what the functions are known by.
PROGRAM = """
import sys
FILE = "%s"
TORCH = '''
def wait(): sys.stdin.read()
def isend(tensor, **more): wait()
def send(tensor, dst=None, group=None, tag=0, group_dst=None):
    group_dst = dst
    isend(tensor, group_dst=group_dst)
def recv(tensor, src=None, group=None, tag=0, group_src=None): wait()
def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None):
    send(object_list, group_dst=dst)
'''
exec(compile(TORCH, FILE, "exec"), globals())
def train():
    print("ready", flush=True)
    %s
def train_with_queues():
    for peer in (): isend(None, dst=peer)
    train()
%s()
"""
TORCH = "/env/torch/distributed/distributed_c10d.py"


def exchange_in(python: str, call: str, *, file: str = TORCH, start: str = "train") -> Exchange | None:
    with Target(PROGRAM % (file, call, start), plain_env(), python=python) as rank:
        until_asleep(rank.pid)
        main = sample(remote_stack.RemoteStacks().dump(rank.pid, 20.0)).main
        assert main is not None and main.frames[-1].function in ("wait", "isend", "recv")
        return main.exchange


@each_python
@pytest.mark.parametrize(
    ("call", "exchange"),
    [
        ("send(None, 1)", Exchange(True, 1)),
        ("recv(None, src=0, tag=7)", Exchange(False, 0, 7)),
        ("recv(None, 70000)", Exchange(False, 70000)),
        ("send_object_list([], 2)", Exchange(True, 2)),
    ],
)
def test_peer_of_a_send_or_receive_is_read_from_its_arguments(python: str, call: str, exchange: Any) -> None:
    assert exchange_in(python, call) == exchange


@each_python
def test_code_that_also_sends_without_waiting_is_marked(python: str) -> None:
    assert exchange_in(python, "send(None, 1)", start="train_with_queues") == Exchange(True, 1, 0, True)


@each_python
@pytest.mark.parametrize(
    "call",
    [
        "recv(None)",
        "send(None, group_dst=1)",
        "recv(None, -1)",
        "recv(None, 'x')",
        "recv(None, 1 << 90)",
        "isend(None)",
    ],
    ids=["any source", "rank of a group", "negative", "text", "huge", "isend"],
)
def test_peer_that_the_call_does_not_name_is_not_known(python: str, call: str) -> None:
    assert exchange_in(python, call) is None


@each_python
def test_send_of_another_package_is_none(python: str) -> None:
    assert exchange_in(python, "send(None, 1)", file="/app/mail.py") is None
