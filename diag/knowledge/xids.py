"""What NVIDIA's Xid numbers mean to a training job. Facts after NVIDIA's Xid catalogue (r590) and gpud's copy
of it (2026-08)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Xid:
    """`action` is a key of ACTIONS. `kind`: hardware (GPU, memory, links, firmware, driver), application (the
    program did it, unless it comes again and again on one GPU alone), consequence (another error comes
    first), notice (nothing broke)."""

    number: int
    meaning: str
    kind: str
    action: str


ACTIONS = {
    "none": "Nothing has to be done for it.",
    "restart_job": "Start the job again from the last checkpoint.",
    "look_at_others": "Look for the error that came before it, on this GPU or on another one.",
    "reset_gpu": "End all processes on the GPU, then reset it (`nvidia-smi --gpu-reset -i INDEX`; with NVSwitch all GPUs of the "
    "node together, or reboot). If it comes back, take the node out and have the GPU examined.",
    "reset_and_watch": "Start the job again; reset the GPU (`nvidia-smi --gpu-reset -i INDEX`) or reboot the node as soon as it "
    "is free, so that the bad memory is mapped out.",
    "reboot": "Drain the node and power-cycle it. If it comes back: power cables, seat of the board, riser, then the GPU itself.",
    "replace": "Drain the node; the GPU has to be replaced.",
    "links": "Drain the node: check fabric manager (`systemctl status nvidia-fabricmanager`), `nvidia-smi nvlink -s` and `-e`, "
    "the seat of board and cables; reset all GPUs of the node, or reboot.",
    "driver": "Reset the GPU or reboot the node, and update driver and firmware: it is a known kind of driver fault.",
    "power": "Check the power cables of the GPU board.",
}

_ROWS: tuple[tuple[int, str, str, str], ...] = (
    (8, "the GPU stopped working on a channel", "application", "restart_job"),
    (11, "a broken command stream", "application", "restart_job"),
    (13, "a kernel did what the GPU forbids (bad address, bad instruction)", "application", "restart_job"),
    (25, "a broken command stream", "application", "restart_job"),
    (31, "a kernel touched memory that is not mapped", "application", "restart_job"),
    (32, "a broken command stream, or corruption on the PCIe bus", "application", "restart_job"),
    (37, "an error in the driver's firmware", "notice", "none"),
    (38, "the driver's firmware hung", "hardware", "driver"),
    (39, "a copy engine failed", "hardware", "restart_job"),
    (40, "a copy engine failed", "hardware", "restart_job"),
    (41, "a copy engine failed", "hardware", "restart_job"),
    (43, "a channel of the program was stopped after an error of its own", "consequence", "look_at_others"),
    (44, "an error at a switch between programs", "consequence", "look_at_others"),
    (
        45,
        "channels were cleaned up after another error, or after the program was killed",
        "consequence",
        "look_at_others",
    ),
    (46, "the GPU stopped answering", "hardware", "reset_gpu"),
    (48, "memory error that ECC could not correct", "hardware", "reset_gpu"),
    (54, "the board's extra power cable is not connected", "hardware", "power"),
    (60, "the security processor failed", "hardware", "driver"),
    (61, "the GPU's micro-controller stopped", "hardware", "reset_gpu"),
    (62, "the GPU's micro-controller halted", "hardware", "reset_gpu"),
    (63, "a bad memory row (or page) was put down for replacement", "notice", "reset_and_watch"),
    (64, "a bad memory row (or page) could not be put down for replacement", "hardware", "replace"),
    (66, "an illegal access by the driver", "notice", "none"),
    (67, "an illegal access by the driver", "notice", "none"),
    (68, "the video decoder failed", "application", "restart_job"),
    (69, "a wrong command class", "application", "restart_job"),
    (74, "NVLink error", "hardware", "links"),
    (79, "the GPU has fallen off the PCIe bus", "hardware", "reboot"),
    (80, "corrupted data on the way to the GPU", "hardware", "reset_gpu"),
    (92, "many memory errors that ECC corrected", "notice", "reset_and_watch"),
    (93, "the board's memory of its own settings is worn", "notice", "none"),
    (
        94,
        "memory error, contained: only the program that used the memory is hit",
        "hardware",
        "reset_and_watch",
    ),
    (95, "memory error, not contained: every program on the GPU is hit", "hardware", "reset_gpu"),
    (106, "a test message", "notice", "none"),
    (107, "a test message", "notice", "none"),
    (109, "a switch between programs took too long", "hardware", "reset_gpu"),
    (110, "the security processor reported a fault", "hardware", "reset_gpu"),
    (119, "the GPU's system processor (GSP) did not answer", "hardware", "driver"),
    (120, "the GPU's system processor (GSP) failed", "hardware", "driver"),
    (121, "an error on the link to the CPU (C2C) was corrected", "notice", "none"),
    (136, "a link could not be trained", "hardware", "reset_gpu"),
    (137, "a request over NVLink was refused: a peer's memory was gone", "consequence", "look_at_others"),
    (140, "memory error that ECC could not correct and that went on", "hardware", "reset_gpu"),
    (141, "an error of CUDA's fast path", "notice", "none"),
    (143, "the GPU could not be initialised", "hardware", "reset_gpu"),
    (144, "NVLink error (SAW)", "hardware", "links"),
    (145, "NVLink error (RLW)", "hardware", "links"),
    (146, "NVLink error (TLW)", "hardware", "links"),
    (147, "NVLink error (TREX)", "hardware", "links"),
    (148, "NVLink error (NVLPW)", "hardware", "links"),
    (149, "NVLink error (NETIR)", "hardware", "links"),
    (150, "NVLink error (MSE)", "hardware", "links"),
    (151, "keys of confidential computing could not be changed", "hardware", "reboot"),
    (154, "the driver changed what it recommends for the GPU", "consequence", "look_at_others"),
    (155, "an NVLink error defined by software", "hardware", "reset_gpu"),
    (156, "a part of the GPU was put down for retirement", "hardware", "reset_gpu"),
    (157, "a part of the GPU could not be retired", "notice", "none"),
    (158, "the GPU timed out fatally", "hardware", "reset_gpu"),
    (160, "a memory channel was put down for retirement", "notice", "reset_and_watch"),
    (161, "a memory channel could not be retired", "notice", "none"),
    (167, "a fatal timeout on PCIe", "hardware", "reboot"),
    (168, "the GPU has less memory than it should", "hardware", "reset_gpu"),
    (169, "the security processor halted", "hardware", "driver"),
    (171, "memory error in DRAM that could not be corrected", "hardware", "reset_gpu"),
    (172, "memory error in SRAM that could not be corrected", "hardware", "reset_gpu"),
)

XIDS: dict[int, Xid] = {row[0]: Xid(*row) for row in _ROWS}
# After these the GPU does not work on for anybody; after 94, say, the next program may use it.
_WORKS_ON = ("restart_job", "reset_and_watch", "power")
HARDWARE_XIDS = frozenset(
    xid.number for xid in XIDS.values() if xid.kind == "hardware" and xid.action not in _WORKS_ON
)
NVLINK_XIDS = frozenset({74, 137, *range(144, 151), 155})
ECC_XIDS = frozenset({48, 63, 64, 92, 94, 95, 140, 160, 171, 172})


def xid_of(number: int) -> Xid:
    """Also of a number that the table does not have: newer drivers have new ones.

    >>> xid_of(79).kind, xid_of(43).kind, xid_of(999).action
    ('hardware', 'consequence', 'restart_job')
    """
    return XIDS.get(number) or Xid(
        number, "an error that diag has no words for", "application", "restart_job"
    )
