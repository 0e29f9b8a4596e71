"""What diag's own sources read of this machine, as JSON: the payload as it goes to the journal, and the facts
made of it."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from diag.model import Payload, Record
from diag.sources.host import proc
from diag.sources.network import infiniband, interfaces, rdma_access


def ports(reader: infiniband.InfinibandReader | None = None) -> dict[str, Any]:
    return _facts(infiniband, (reader or infiniband.InfinibandReader()).sample())


def networks(pid: int | None = None) -> dict[str, Any]:
    return _facts(interfaces, interfaces.InterfacesReader().sample(pid))


def access(pid: int) -> dict[str, Any]:
    """What a process has of RDMA, with what its /proc/PID/status and limits say of memory."""
    reader = proc.ProcessReader(pid)
    try:
        return {
            **_facts(rdma_access, rdma_access.RdmaAccessReader(pid).sample()),
            "limits": _facts(proc, reader.limits()),
            "tree": _facts(proc, reader.sample()),
        }
    finally:
        reader.close()


def _facts(source: Any, payload: Payload) -> dict[str, Any]:
    """{"payload": ..., "facts": [...]}; a fact has its class's name beside its fields."""
    record = Record(
        source.SOURCE, payload, rank=0, host=os.uname().nodename, emitted=time.time(), at=time.time()
    )
    facts = [{"fact": type(fact).__name__, **dataclasses.asdict(fact)} for fact in source.parse(record)]
    return {"payload": payload, "facts": facts}
