"""NCCL RAS over a real socket: what it is asked, servers that misbehave, and addresses."""

from __future__ import annotations

import socket
import time

import pytest

from diag.model.observations import (
    SourceFailed,
)
from diag.sources.collectives import nccl_ras as source
from diag.sources.payload import failures_of
from tests.rasserver import captured, ras_server
from tests.sources.ras_readings import from_file, parsed, reading


def test_server_that_knows_json_is_asked_for_it_over_protocol_2() -> None:
    with ras_server(json=captured("mega4_data_hang/hang_ras.json")) as server:
        payload = source.read(server.address, own_addresses=["192.0.2.2"])

    assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]
    assert set(payload) == {"address", "json", "addresses"}
    found = reading(payload)
    assert found.addresses == ("192.0.2.2",)
    assert found.communicators == from_file("mega4_data_hang/hang_ras.json").communicators
    assert len(payload["json"]) < 0.7 * len(captured("mega4_data_hang/hang_ras.json"))  # without indentation


def test_server_before_2_28_7_is_read_as_text() -> None:
    with ras_server(captured("mismatch_op/ras_verbose.txt")) as server:
        payload = source.read(server.address)

    assert "SET FORMAT json" in server.commands
    assert reading(payload).communicators == from_file("mismatch_op/ras_verbose.txt").communicators


def test_text_is_asked_for_where_json_would_be_too_much() -> None:
    with ras_server(captured("data_hang/ras_verbose.txt"), captured("data_hang/ras_json.txt")) as server:
        assert "text" in source.read(server.address, want_json=False)


def test_report_that_ends_in_the_middle_is_used_as_far_as_it_came() -> None:
    with ras_server(json=captured("mega4_data_hang/hang_ras.json"), mode="torn") as server:
        found = reading(source.read(server.address))
    assert not found.whole and 10 < len(found.communicators) < 25


@pytest.mark.parametrize(
    ("mode", "failed"),
    [
        ("silent", "timed_out"),
        ("hangs", "timed_out"),
        ("closes", "closed"),
        ("http", "not_ras"),
        ("endless line", "not_ras"),
        ("endless report", "too_large"),
    ],
)
def test_server_that_misbehaves_costs_one_deadline_and_a_bounded_answer(
    monkeypatch: pytest.MonkeyPatch, mode: str, failed: str
) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 1 << 20)
    began = time.monotonic()
    with ras_server(json=captured("data_hang/ras_json.txt"), mode=mode) as server:
        payload = source.read(server.address, deadline=1.0)
        took = time.monotonic() - began

    assert payload["failed"] == failed, payload
    assert took < 5.0
    (fact,) = parsed(payload)
    assert (
        isinstance(fact, SourceFailed)
        and fact.source == "nccl_ras"
        and failures_of(source.SOURCE)[failed][0] in fact.reason
    )


def test_nothing_that_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert source.read(f"localhost:{port}")["failed"] == "refused"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "localhost:",
        ":0",
        "localhost:70000",
        "a b:1",
        "[::1]",
        "x" * 400 + ":1",
        "host:1:2",
        "\ud800:5",
    ],
)
def test_address_that_is_none_is_said_to_be_none(address: str) -> None:
    assert source.read(address, deadline=2.0)["failed"] == "no_address"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("localhost:28028", ("localhost", 28028)),
        (":5", ("localhost", 5)),
        ("[::1]:5", ("::1", 5)),
        ("0.0.0.0:5", ("127.0.0.1", 5)),
        ("127.0.0.1<28028>", ("127.0.0.1", 28028)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
    ],
)
def test_address_is_read_as_nccl_reads_and_writes_it(address: str, place: tuple[str, int]) -> None:
    assert source.split_address(address) == place
