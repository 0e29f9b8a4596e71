"""Lines of NVIDIA's kernel driver, in the forms that its versions print."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import KernelLine, Observation, SxidReported, XidReported
from diag.sources.host import kmsg

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu" / "dmesg.txt"


def told(*lines: str) -> list[Observation]:
    told = kmsg.parse(Record("kmsg", {"lines": list(lines)}))
    return [fact for fact in told if not isinstance(fact, KernelLine)]


@pytest.mark.parametrize(
    ("line", "bus", "xid", "pid"),
    [
        (
            "[  482.2] NVRM: Xid (PCI:0000:00:07): 43, pid=1562, name=python3, channel 0x0000000a",
            "0000:00:07",
            43,
            1562,
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14, None),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "0000:05:00",
            79,
            None,
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 31, Ch 0000005a, intr 10000000. MMU Fault: ENGINE GRAPHICS",
            "0000:01:00",
            31,
            None,
        ),
        (
            "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
            "0000:00:00",
            149,
            None,
        ),
        (
            "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            "0000:dc:00",
            45,
            1818990,
        ),
        (
            "NVRM: Xid (PCI:0000:07:00): 109, pid=326, name=modprobe, channel 0x7, errorString CTX SWITCH TIMEOUT, Info 0x74007",
            "0000:07:00",
            109,
            326,
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 119, pid=7, name=x, Timeout after 6s of waiting for RPC",
            "0000:3b:00",
            119,
            7,
        ),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", "0000:18:00.0", 79, None),
        ("[   49.2] NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "0000:01:00.0", 79, None),
        ("               NVRM: fallen off the bus and is not responding to commands.", "", 79, None),
    ],
)
def test_xid_is_read_in_every_form(line: str, bus: str, xid: int, pid: int | None) -> None:
    assert told(line) == [XidReported(None, bus, xid, pid, line.strip())]


@pytest.mark.parametrize(
    ("line", "bus", "sxid", "fatal", "link"),
    [
        (
            "[1.1] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            "0000:05:00.0",
            12028,
            False,
            32,
        ),
        (
            "[131453.740743] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "0000:00:00.0",
            20034,
            True,
            30,
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 10003, Fatal, Host interface timeout",
            "0000:c3:00.0",
            10003,
            True,
            None,
        ),
    ],
)
def test_sxid_is_read_with_whether_it_is_fatal(
    line: str, bus: str, sxid: int, fatal: bool, link: int | None
) -> None:
    assert told(line) == [SxidReported(None, bus, sxid, fatal, link, line.strip())]


@pytest.mark.parametrize(
    "line",
    [
        # the second and third line of one SXid
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000, 0x00140004, 0x00000000, 0x00000000}",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (PCI:",
        "NVRM: GPU at PCI:0000:00:07: GPU-1",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
    ],
)
def test_line_that_reports_no_error_of_its_own_says_nothing(line: str) -> None:
    assert told(line) == []


def test_recorded_kernel_log_tells_three_faults_and_nothing_of_the_drivers_start() -> None:
    facts = told(*CAPTURE.read_text().splitlines())

    assert [(fact.xid, fact.pid) for fact in facts if isinstance(fact, XidReported)] == [
        (43, 11853),
        (31, 11865),
        (13, None),
        (13, None),
        (13, 11881),
    ]
    assert {fact.pci_bus_id for fact in facts if isinstance(fact, XidReported)} == {"0000:00:07"}
