"""RDMA ports of the node as /sys/class/infiniband shows them: state, rate, counters, GIDs. No root, no
library, no verbs.

Reading a counter of mlx5 is a command to its firmware, and one that fails is a line in the kernel log each
time: what failed is remembered and left alone. What the numbers mean is the detectors'.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import Observation, RdmaGid, RdmaPort, RdmaPortsSeen, Unparsed
from diag.sources.payload import rows, word
from diag.text.errors import SourceUnavailable

SOURCE = "infiniband"

ROOT = Path("/sys/class/infiniband")

# ib_core's own (PMA) that say where bytes go and how well; each is a firmware command on mlx5, so not all of
# the 24.
_COUNTERS = (
    "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait", "port_xmit_discards",
    "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_constraint_errors", "symbol_error", "link_downed",
    "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
# A driver's own, read by the group (mlx5 keeps them 10 ms, rxe 12 ms). hfi1 has 300: bytes, packets and these
# first.
_FIRST_HW_COUNTERS = (
    "tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "sent_pkts", "rcvd_pkts", "rx_drops", "rdma_read_bytes", "rdma_write_bytes",
    "link_downed", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "np_cnp_sent",
    "np_ecn_marked_roce_packets", "rp_cnp_handled", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart",
    "rx_icrc_encapsulated", "req_cqe_error", "resp_cqe_error", "req_cqe_flush_error", "resp_cqe_flush_error",
    "req_remote_access_errors", "resp_remote_access_errors", "duplicate_request", "out_of_buffer", "implied_nak_seq_err",
    "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "retrans_bytes", "retrans_pkts", "retrans_timeout_events",
    "unresponsive_remote_events", "impaired_remote_conn_events",
)  # fmt: skip
_MOST_HW_COUNTERS = 64
_NOT_COUNTERS = frozenset({"lifespan"})  # milliseconds that the driver keeps the others
_MOST_DEVICES = 64
_MOST_PORTS = 8
_MOST_GID_SLOTS = 256  # mlx5 says so of RoCE
_MOST_GIDS = 32
_GID_SECONDS = 300.0  # they change with addresses only, and a table is up to 256 files
_RETRY_SECONDS = 300.0  # after EIO, ETIMEDOUT ...: a card that is being reset
# What is refused once is refused for good: EINVAL and EOPNOTSUPP of the driver, EPERM of a virtual function.
_HOPELESS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES})
_NO_ANSWER = "N/A"  # "N/A (no PMA)": mlx4 virtual functions and i40iw, kernels before 5.6


class InfinibandReader:
    """Reads all ports repeatedly. Not thread-safe."""

    def __init__(self, root: Path = ROOT, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = os.fspath(root)
        self._clock = clock
        self._failed: dict[str, float] = {}  # file -> when it may be read again
        self._names: dict[str, tuple[str, ...]] = {}  # hw_counters folder -> the files in it that are read
        self._gids: dict[str, tuple[float, list[list[Any]]]] = {}
        self._devices: list[str] = []

    def sample(self) -> Payload:
        """All ports of all devices now: {"devices": {name: {port: {file: text}}}}, no device at all included.

        Raises SourceUnavailable.
        """
        now = self._clock()
        devices = self._list_devices()
        if devices != self._devices:  # one came or went: nothing of an old card holds for the new one
            self._failed, self._names, self._gids = {}, {}, {}
            self._devices = devices
        return {"devices": {device: self._device(device, now) for device in devices}}

    def _list_devices(self) -> list[str]:
        try:
            return sorted(os.listdir(self._root))[:_MOST_DEVICES]
        except FileNotFoundError:
            if Path(self._root).parent.is_dir():  # /sys/class is there: the kernel has no RDMA device
                return []
            raise SourceUnavailable(f"{self._root} is not visible: /sys is not mounted", _MOUNT) from None
        except OSError as error:
            raise SourceUnavailable(f"{self._root} cannot be read: {error.strerror}", _MOUNT) from error

    def _device(self, device: str, now: float) -> Payload:
        ports = _listed(f"{self._root}/{device}/ports")
        numbers = sorted((name for name in ports if name.isdecimal() and len(name) < 4), key=int)[
            :_MOST_PORTS
        ]
        # EFA before Linux 5.14 counts by the device, of which it has one port
        hardware = f"{self._root}/{device}/hw_counters" if len(numbers) == 1 else ""
        return {
            number: self._port(f"{self._root}/{device}/ports/{number}", hardware, now) for number in numbers
        }

    def _port(self, base: str, device_counters: str, now: float) -> Payload:
        port: dict[str, Any] = {"link_layer": self._read(f"{base}/link_layer", now)}
        port["state"] = self._read(f"{base}/state", now)
        # one query of the driver answers all three: where it fails, each is a line in dmesg
        if port["state"] is not None:
            port["phys_state"] = self._read(f"{base}/phys_state", now)
            port["rate"] = self._read(f"{base}/rate", now)
        port["counters"] = self._read_all(f"{base}/counters", _COUNTERS, now)
        folder = f"{base}/hw_counters"
        names = self._hw_names(folder)
        if device_counters and not names and not port["counters"]:
            folder, names = device_counters, self._hw_names(device_counters)
        port["hw_counters"] = self._read_all(folder, names, now)
        at, gids = self._gids.get(base, (-_GID_SECONDS, []))
        if now - at >= _GID_SECONDS:
            gids = self._read_gids(base, now)
            self._gids[base] = (now, gids)
        port["gids"] = gids
        return port

    def _hw_names(self, folder: str) -> tuple[str, ...]:
        names = self._names.get(folder)
        if names is None:
            there = {name for name in _listed(folder) if name not in _NOT_COUNTERS}
            first = [name for name in _FIRST_HW_COUNTERS if name in there]
            names = self._names[folder] = (*first, *sorted(there.difference(first)))[:_MOST_HW_COUNTERS]
        return names

    def _read_all(self, folder: str, names: tuple[str, ...], now: float) -> dict[str, str]:
        values = {}
        for name in names:
            text = self._read(f"{folder}/{name}", now)
            if text is not None:
                values[name] = text
        return values

    def _read_gids(self, base: str, now: float) -> list[list[Any]]:
        """[index, gid, type, interface] of the slots in use; type and interface of an empty one would be
        EINVAL."""
        found: list[list[Any]] = []
        slots = sorted(
            (name for name in _listed(f"{base}/gids") if name.isdecimal() and len(name) < 6), key=int
        )
        for slot in slots[:_MOST_GID_SLOTS]:
            gid = self._read(f"{base}/gids/{slot}", now)
            if gid is None or not gid.strip("0:"):
                continue
            kind = self._read(f"{base}/gid_attrs/types/{slot}", now)
            behind = self._read(f"{base}/gid_attrs/ndevs/{slot}", now)
            found.append([int(slot), gid, kind, behind])
            if len(found) >= _MOST_GIDS:
                break
        return found

    def _read(self, path: str, now: float) -> str | None:
        """The text of a file; None when it is not there, or failed, now or earlier."""
        if self._failed and now < self._failed.get(path, now):
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.read(fd, 256).decode("ascii", "replace").strip()
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._failed[path] = float("inf") if error.errno in _HOPELESS else now + _RETRY_SECONDS
            return None
        if text.startswith(_NO_ANSWER):
            self._failed[path] = float("inf")
            return None
        return text


_MOUNT = "give diag the node's /sys (in a container: mount it read-only)"


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # gone since, or not of this driver (rxe has no counters/)
        return []


# --- understanding it

# /sys/class/infiniband/rxe0/ports/1/state, phys_state, rate; soft-RoCE of Linux 6.1 (Debian 12), 2026-11-20:
#   4: ACTIVE
#   5: LinkUp
#   10 Gb/sec (1X FDR10)
# and of mlx4 (fixtures of prometheus/procfs): 40 Gb/sec (4X QDR)
_NUMBERED = re.compile(r"(\d{1,2}): ?([\w -]{1,40})$", re.ASCII)
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", re.ASCII)
_BYTES_PER_GIGABIT = 125e6
_IN_WORDS = ("port_xmit_data", "port_rcv_data")  # of 4 bytes: Documentation/ABI/stable/sysfs-class-infiniband
_SATURATED = 0xFFFFFFFF  # where a card counts in 32 bits the counter stops there


def parse(record: Record) -> Iterator[Observation]:
    """One RdmaPortsSeen; a node without RDMA devices has one without ports."""
    payload = record.payload
    devices = payload.get("devices") if isinstance(payload, Mapping) else None
    if not isinstance(devices, Mapping):
        yield Unparsed(record.rank, SOURCE, "no list of RDMA devices", str(payload)[:200])
        return
    ports = []
    for device, listed in devices.items():
        for number, files in listed.items() if isinstance(listed, Mapping) else ():
            if isinstance(files, Mapping) and word(number, 4).isdecimal() and len(number) < 4:
                ports.append(_port(str(device)[:64], int(number), files))
            else:
                yield Unparsed(record.rank, SOURCE, f"no port of {str(device)[:64]}", str(files)[:200])
    yield RdmaPortsSeen(record.rank, tuple(ports), record.read_at)


def _port(device: str, number: int, files: Mapping[str, Any]) -> RdmaPort:
    state, physical = _numbered(files.get("state")), _numbered(files.get("phys_state"))
    rate = _RATE.match(word(files.get("rate")))
    return RdmaPort(
        device=device,
        port=number,
        state=state[0] if state else None,
        physical_state=physical[1] if physical else "",
        rate_bytes_per_second=float(rate[1]) * _BYTES_PER_GIGABIT if rate else None,
        link_layer=word(files.get("link_layer"), 40),
        counters=tuple(_counters(files)),
        gids=tuple(
            RdmaGid(slot, gid[:40], word(kind, 40), word(interface, 40))
            for slot, gid, kind, interface in rows(files.get("gids"), int, str, object, object)
        ),
    )


def _counters(files: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    seen: set[str] = set()
    for folder in ("counters", "hw_counters"):  # rxe has link_downed in the second only
        values = files.get(folder)
        for name, text in values.items() if isinstance(values, Mapping) else ():
            value = word(text)
            if name in seen or not value.isdecimal() or len(value) > 20:
                continue
            number = int(value)
            if folder == "counters" and name in _IN_WORDS:
                if number == _SATURATED:
                    continue
                number *= 4
            seen.add(name)
            yield str(name)[:80], number


def _numbered(text: object) -> tuple[int, str] | None:
    found = _NUMBERED.match(word(text))
    return (int(found[1]), found[2].strip()) if found else None
