"""Reports of NCCL RAS, and what they are parsed to."""

from __future__ import annotations

from typing import Any

from diag.model import Record
from diag.model.observations import (
    Observation,
    RasReading,
    SourceWorks,
)
from diag.sources.collectives import nccl_ras as source
from diag.sources.parsers import PARSERS
from tests.rasserver import CAPTURES


def parsed(payload: Any) -> list[Observation]:
    return list(PARSERS[source.SOURCE](Record(source.SOURCE, payload, host="node-0", at=5.0)))


def reading(payload: Any) -> RasReading:
    works, found = parsed(payload)
    assert isinstance(works, SourceWorks) and isinstance(found, RasReading), (works, found)
    return found


def from_file(name: str) -> RasReading:
    return reading({"text": (CAPTURES / name).read_text()})


# Not captured: put together from the format strings of NCCL 2.32, src/ras/client_support.cc.
LARGE = """NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs
          per node  per process
      1          8            1
      1          7            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      2         15           15

Communicators... (5.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       7-8        16        15   RUNNING  INCOMPLETE,ERROR,MISMATCH
    1         3         2         2         4         8      INIT      OK

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 118 on node fd00::2 managing GPUs 6,7 (NVML 2,3)

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 119 on node fd00::2 managing GPU 7

#0-0 (00000000deadbeef) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 14 -- GPU 6 (NVML 2) managed by process 118 on node fd00::2
  Rank 15 -- GPU 7 managed by process 119 on node fd00::2

#0-0 (00000000deadbeef) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 4 -- GPU 4 managed by process 105 on node fd00::1
  Rank 5 -- GPU 5 managed by process 106 on node fd00::1
  Rank 6 reported Unhandled CUDA error -- GPU 6 managed by process 107 on node fd00::1

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (00000000deadbeef) MISMATCH
  Communicator ranks have different status
  12 ranks have status RUNNING
  Rank 13 has status INIT -- GPU 5 managed by process 117 on node fd00::2
  Rank 12 has status NOCOMM -- GPU 4 managed by process 116 on node fd00::2
  Communicator ranks have different AllReduce operation counts
  10 ranks have launched up to operation 900
  2 ranks have launched up to operation 899
  Rank 2 -- GPU 2 managed by process 103 on node fd00::1
  Rank 3 -- GPU 3 managed by process 104 on node fd00::1
  Rank 7 has not launched any operations -- GPU 7 managed by process 108 on node fd00::1

"""
