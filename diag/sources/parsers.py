"""Which parser reads which source's records: the one table that the engine is given."""

from __future__ import annotations

from diag.model.observations import Parser
from diag.sources import digest, estimate, ray, waits
from diag.sources.collectives import flight_recorder, nccl_ras, store
from diag.sources.gpu import cuda_coredump, npu_smi, nvml
from diag.sources.host import cgroup, child_exits, exits, kmsg, proc, run, shm, software
from diag.sources.logs import output, written
from diag.sources.network import infiniband, interfaces, rdma_access
from diag.sources.payload import failures_of
from diag.sources.stacks import faulthandler, native, program, pyspy, remote_stack, variables
from diag.sources.storage import checkpoint, disk

PARSERS: dict[str, Parser] = {
    run.SOURCE: run.parse,
    output.SOURCE: output.parse,
    written.SOURCE: written.parse,
    proc.SOURCE: proc.parse,
    exits.SOURCE: exits.parse,
    child_exits.SOURCE: child_exits.parse,
    cgroup.SOURCE: cgroup.parse,
    shm.SOURCE: shm.parse,
    software.SOURCE: software.parse,
    checkpoint.SOURCE: checkpoint.parse,
    cuda_coredump.SOURCE: cuda_coredump.parse,
    digest.SOURCE: digest.parse,
    digest.VERDICT_SOURCE: digest.parse_verdict,
    disk.SOURCE: disk.parse,
    estimate.SOURCE: estimate.parse,
    npu_smi.SOURCE: npu_smi.parse,
    nvml.SOURCE: nvml.parse,
    infiniband.SOURCE: infiniband.parse,
    interfaces.SOURCE: interfaces.parse,
    rdma_access.SOURCE: rdma_access.parse,
    kmsg.SOURCE: kmsg.parse,
    remote_stack.SOURCE: remote_stack.parse,
    waits.SOURCE: waits.parse,
    ray.SOURCE: ray.parse,
    pyspy.SOURCE: pyspy.parse,
    native.SOURCE: native.parse,
    faulthandler.SOURCE: faulthandler.parse,
    program.SOURCE: program.parse,
    variables.SOURCE: variables.parse,
    flight_recorder.SOURCE: flight_recorder.parse,
    nccl_ras.SOURCE: nccl_ras.parse,
    store.SOURCE: store.parse,
}

# Now, not with the first failure: at the limit of open files, or on a disk that hangs, it would be too late.
for _source in (nccl_ras.SOURCE, faulthandler.SOURCE):
    failures_of(_source)
