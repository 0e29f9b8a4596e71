"""What NCCL logs of its communicators: their making and end, their shape, their connections between nodes."""

from __future__ import annotations

import re

from diag.model import observations as facts
from diag.sources.logs.nccl_log.head import reads

# src/init.cc. In order of NCCL's version; captured are those of 2.28.9 without a parent:
#   2.18-2.20  comm 0x5591 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 7000 commId 0x7a65 - Init START
#   2.21-2.22  ncclCommInitRank comm 0x55d9 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 61000 commId 0x1fc5 - Init COMPLETE
#   2.23-2.28  ncclCommInitRankConfig comm 0x4008 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x67f0 - Init START
#   2.29-2.31  [Rank 0] ncclCommInitRankConfig comm 0x4008 rank 0 nranks 2 ... commId 0x67f0 - Init START
#   2.21-2.22  ncclCommSplit comm 0x55 rank 0 nranks 2 ... busId 60 parent 0x54 color 0 key 0 commId 0x1f - Init START
#   2.23       ncclCommSplit comm 0x55 rank 0 nranks 2 ... busId 60 parent 0x54 color 0 key 0- Init START
#   2.24-2.28  ncclCommSplit comm 0x55 rank 0 nranks 2 ... busId 60 parent 0x54 splitCount 1 color 0 key 0- Init START
#   2.29-2.30  ncclCommSplit comm 0x55 rank 0 nranks 2 ... busId 60 parent 0x54 childCount 1 color 0 key 0- Init START
#   2.31       ncclCommSplit comm 0x55 rank 0 nranks 2 ... commId 0x1f parent 0x54 childCount 1 color 0 key 0 - Init START
#   2.18-2.30  comm 0x400879c0 rank 0 nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE
#   2.31       comm 0x400879c0 rank 0 nranks 2 cudaDev 0 busId 60 commId 0x67f0 - Abort COMPLETE
_LIFE = re.compile(
    r"(?:\[Rank \d{1,7}\] )?(?:(?P<function>\w{1,60}) )?comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) "
    r"n[rR]anks (?P<size>\d{1,7}) (?P<rest>[\w ()-]{0,300}?) ?- (?P<stage>(?:Init|Destroy|Abort) [A-Z]{5,8})$"
)
_STAGES = {
    "Init START": "start",
    "Init COMPLETE": "complete",
    "Destroy COMPLETE": "destroyed",
    "Abort COMPLETE": "aborted",
}
_PART_OF_LIFE = re.compile(r"\b(busId(?= [0-9a-f])|commId(?= 0x)|parent(?= 0x)) ((?:0x)?[0-9a-f]{1,16})")
# src/init.cc, 2.20-2.31 (RCCL the same, less MNNVL); captured with 2.28.9:
#   comm 0x400879c0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
_TOPOLOGY = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nRanks (\d{1,7}) nNodes (\d{1,7}) localRanks (\d{1,7}) "
    r"localRank \d{1,7}(?: MNNVL (\d)| |$)"
)


def communicator(line: facts.NcclLine) -> facts.NcclFact | None:
    text = line.text
    if " nNodes " in text:
        match = _TOPOLOGY.match(text)
        if match is None:
            return None
        rank, size, nodes, local = map(int, match.group(2, 3, 4, 5))
        return facts.NcclCommunicator(
            line.rank, line, "topology", match[1], rank, size,
            nodes=nodes, local_ranks=local, nvlink=match[6] == "1",
        )  # fmt: skip
    match = _LIFE.match(text)
    stage = _STAGES.get(match["stage"]) if match else None
    if match is None or stage is None:
        return None
    comm, rank, size = match["comm"], int(match["rank"]), int(match["size"])
    parts = dict(_PART_OF_LIFE.findall(match["rest"]))
    return facts.NcclCommunicator(
        line.rank, line, stage, comm, rank, size, parts.get("commId", ""), match["function"] or "",
        parts.get("parent", ""), bus_id=parts.get("busId", ""),
    )  # fmt: skip


# src/init.cc:
#   2.22       Init timings: rank 2 nranks 16 total 1.08 (kernels 0.51, bootstrap 0.22, allgathers 0.01, topo 0.28, graphs 0.04,
#              connections 0.02, rest 0.01)
#   2.23-2.31  Init timings - ncclCommInitRankConfig: rank 0 nranks 2 total 0.46 (kernels 0.39, alloc 0.01, bootstrap 0.02, ...
#              (captured with 2.28.9)
_TIMINGS = re.compile(
    r"Init timings(?: - (\w{1,60}))?: rank (\d{1,7}) nranks (\d{1,7}) total (\d{1,9}\.\d{1,6}) \(([\w ., ]{1,400})\)$"
)
_PART = re.compile(r"(\w{1,40}) (\d{1,9}\.\d{1,6})")


def _timings(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _TIMINGS.match(line.text)
    if match is None:
        return None
    parts = tuple((name, float(seconds)) for name, seconds in _PART.findall(match[5]))
    return facts.NcclInitTimings(
        line.rank, line, match[1] or "", int(match[2]), int(match[3]), float(match[4]), parts
    )


# src/transport/net.cc; RCCL the same, with "comm 0x... nRanks 16" behind:
#   2.18-2.31  Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA/Shared
#   2.18-2.31  Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0(5)/GDRDMA     by the card of rank 5 (PXN)
#   2.26-2.31  Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA(PCI)
#   2.18-2.31  Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0           (captured with 2.28.9)
#   2.18-2.31  Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM                     within a node: no fact
_CHANNEL = re.compile(
    r"Channel (?P<channel>\d{1,4})(?:/\d{1,3})? : (?P<sender>\d{1,7})(?:\[[0-9a-f]{1,8}\])? "
    r"-> (?P<receiver>\d{1,7})(?:\[[0-9a-f]{1,8}\])? (?:\[(?P<direction>send|receive)\] )?"
    r"via NET/(?P<net>\S(?:.{0,60}?\S)?)/(?P<device>\d{1,4})(?:\((?P<proxy>\d{1,7})\))?(?P<gpu_direct>/GDRDMA)?(?![\w.])"
)
_by_net = reads(facts.NcclChannel, _CHANNEL, direction="", gpu_direct=False)


def _channel(line: facts.NcclLine) -> facts.NcclFact | None:
    return _by_net(line) if " via NET/" in line.text else None


# src/init.cc, WARN; the bus id is hexadecimal:
#   2.18-2.29  Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60
#   2.30-2.31  Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.
_DUPLICATE = re.compile(
    r"Duplicate GPU detected : rank (?P<comm_rank>\d{1,7}) and rank (?P<other_rank>\d{1,7}) "
    r"both on CUDA device (?P<bus_id>[0-9a-f]{1,16})$|Multiple Ranks are using the same GPU"
)
_duplicate = reads(facts.NcclDuplicateGpu, _DUPLICATE, comm_rank=-1, other_rank=-1, bus_id="")


READERS = {
    "comm": communicator,
    "[Rank": communicator,
    "Init": _timings,
    "Channel": _channel,
    "Duplicate": _duplicate,
    "Multiple": _duplicate,
}
