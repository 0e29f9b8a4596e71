"""What is known of the job now, to be read by detectors and outputs. `JobState` keeps it.

Each part is a reducer with attributes of its own, described where it is defined. None of them, and nothing of
a rank, is written from outside of this package: `tests/core/test_state_ownership.py` holds that.
"""

from __future__ import annotations

from typing import Final

from diag.model import NotChecked
from diag.state.acts import Acts
from diag.state.cluster import Cluster
from diag.state.gpu_past import GpuPast
from diag.state.gpufaults import GpuFaults
from diag.state.learned_steps import LearnedSteps
from diag.state.log import Log
from diag.state.machine import Machine
from diag.state.ncclprocesses import NcclProcesses, NcclState
from diag.state.network import NetworkState
from diag.state.own_logs import OwnLogs
from diag.state.phases import Phases
from diag.state.points import Points
from diag.state.program import Program
from diag.state.progress import Progress
from diag.state.rank_view import RankView
from diag.state.ranks import Ranks
from diag.state.ray import Ray
from diag.state.reducer import Tell
from diag.state.residence import Residence
from diag.state.run import Run
from diag.state.saving import Saves
from diag.state.silences import Silences
from diag.state.software import Software
from diag.state.sources import Sources


class JobView:
    """The job as observed so far."""

    def __init__(self, tell: Tell) -> None:
        self.run: Final = Run()  # the command and its end
        self.acts: Final = Acts()  # what diag did to it
        self.log: Final = Log()  # the last lines of the output
        self.sources: Final = Sources()  # what could not be looked at
        self.machine: Final = Machine()  # GPUs, disks, memory of the host
        self.network: Final = NetworkState()  # RDMA ports and IP interfaces
        self.nccl: Final = NcclState()  # what NCCL's log says of the job
        self.nccl_processes: Final = NcclProcesses()  # and of each process
        self.cluster: Final = Cluster()  # the nodes as their hubs tell them
        self.ranks: Final = Ranks(self.cluster, tell)  # the ranks and their processes
        self.phases: Final = Phases(self.ranks, tell)  # where in its life the job is
        self.progress: Final = Progress(self.run, self.cluster, self.phases, tell)  # its steps
        self.points: Final = Points(tell)  # the numbers of its steps
        self.learned: Final = LearnedSteps(self.ranks, tell)  # which counter of its log counts them
        self.saves: Final = Saves(self.run, self.phases, self.progress)  # its checkpoints
        self.silences: Final = Silences()  # how long it stood still and went on
        self.residence: Final = Residence(self.phases)  # where the ranks' threads are found in a step
        self.program: Final = Program()  # its own text, where ranks were found
        self.own_logs: Final = OwnLogs()  # what ranks write into files of their own
        self.software: Final = Software()  # what it runs on
        self.gpu_past: Final = GpuPast()  # what its GPUs came to
        self.ray: Final = Ray()  # Ray's processes, where the job uses it
        self.gpu_faults: Final = GpuFaults()  # what the driver and CUDA reported

    @property
    def phase(self) -> str:
        return self.phases.now

    @property
    def iteration(self) -> int | None:
        return self.progress.iteration

    @property
    def returncode(self) -> int | None:
        return self.run.returncode

    @property
    def interrupted_at(self) -> float | None:
        return self.run.interrupted_at

    @property
    def world_size(self) -> int:
        return self.ranks.world_size

    @property
    def broken(self) -> bool:
        """Ended or ending for another reason than success: nothing can get better any more. A restart heals
        it."""
        return (
            self.interrupted_at is not None
            or self.returncode not in (None, 0)
            or any(rank.failed for rank in self.ranks.values())
        )

    def alive_ranks(self) -> list[RankView]:
        return self.ranks.alive()

    def last_progress(self) -> float:
        """When the job or any of its ranks last moved on any channel; the run's start when nothing ever did."""
        if self.cluster.nodes:
            times = [self.ranks.last_moves()[1]]
        else:
            times = [rank.last_moved() for rank in self.ranks.values() if rank.alive]
        times.append(self.progress.log_moved_at or 0.0)
        times.append(self.saves.moved_at or 0.0)
        times.append(self.run.started_at or 0.0)
        return max(times)

    def not_checked(self) -> list[NotChecked]:
        """What the sources could not look at."""
        return list(self.sources.not_checked(self.ranks.values(), self.returncode is not None))
