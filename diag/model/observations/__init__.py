"""The vocabulary: every typed fact that a detector may know, one frozen dataclass each.

Sources make these out of raw records (`parse`); detectors and the job state receive them. Sizes are bytes,
times are seconds, CPU times are seconds since the process began. Import the facts from here, whichever of
the modules below holds them: a module is loaded when one of its facts is asked for, as making all these classes
takes a tenth of a second, and most commands and helpers know a few.
"""

# ruff: noqa: F403
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diag.model.observations.base import *
    from diag.model.observations.cluster import *
    from diag.model.observations.collectives import *
    from diag.model.observations.gpu import *
    from diag.model.observations.log import *
    from diag.model.observations.machine import *
    from diag.model.observations.memory import *
    from diag.model.observations.nccl import *
    from diag.model.observations.network import *
    from diag.model.observations.ray import *
    from diag.model.observations.run import *
    from diag.model.observations.stacks import *

_FACTS = {
    "base": """
        Observation Unparsed SourceFailed SourceWorks Event Listener by_type Parser
    """,
    "cluster": """
        NodeDigest FramesSeen ThreadSeen StackSampleSummary RankDigest NodeProbed JobVerdict
        VerdictLost
    """,
    "collectives": """
        CALLS_KEPT CollectiveEntry CollectiveGroup FlightRecorder CallSequence CallHistory
        CollectiveTimedOut WatchdogState RasRank RasMissing RasCommunicator RasReading RecorderAsked
    """,
    "gpu": """
        GpuSample NpuSample NvlinkSeen GpuHealth XidReported SxidReported CudaOutOfMemory
        CudaErrorRaised GpuDumpStarted GpuKernel GpuKernels
    """,
    "log": """
        LogLine LinesWritten LastLines PlainLines QuietLine QuietLines Moment KernelLine PhaseMarked EpochStarted Iteration StepsPlanned
        BarMoved MetricsLogged SaveStarted SaveFinished SavesBehind LayoutReported LossScaleReduced
        NonFiniteReported VersionSeen LossPrinted
    """,
    "machine": """
        ProcessSample ProcessTree LimitsSeen CheckpointFolder CheckpointsSeen DiskSpace
    """,
    "memory": """
        CgroupLevel CgroupMemory CgroupPids HostMemory SharedMemory KernelOomKill KernelRefusal
        MemoryTerm PublishedRun StepWork MemoryEstimated
    """,
    "nccl": """
        NcclLine NcclPlainLines NcclFact NcclVersion NcclRasListening NcclEnvironment NcclNetChosen
        NcclNetFailed NcclPlugin NcclIbDevice NcclIbDevices NcclSockets NcclBootstrap
        NcclInterfaceMissing NcclLibraryMissing NcclChannel NcclCommunicator NcclInitTimings
        NcclGpuDirect NcclVerbsError NcclCompletionError NcclPortEvent NcclDuplicateGpu NcclPeerLost
        NcclNetDiffers NcclRetry NcclResult VerbsDriverMissing
    """,
    "network": """
        RdmaGid RdmaPort RdmaPortsSeen Interface InterfacesSeen RdmaAccess NetworkExpected
    """,
    "ray": """
        RayProcess RayDemand RayDeath RaySeen
    """,
    "run": """
        RunStarted RunEnded EvidenceKept RankFound RankWithdrawn RankShared Agent AgentsSeen RankExited ChildEnded
        WorkerFailureReported WorkerNamed Interrupted SamplingGap EnvironmentSeen AttemptBegan Acted PastAttempt StartedAgain
        LogsEnded EndUnknown JournalCutOff SnapshotTaken SoftwareSeen
        StoreTried StoreWaited
    """,
    "stacks": """
        Frame Exchange ThreadStack StackSample NativeFramesRead Block Leave Link Meaning Origin Answer ProgramPlace Statement
        ProgramRead StarterSeen Variable Raised FrameVariables AsyncTask Mark Reached Folder Mapped VariablesRead
    """,
}
_HOMES = {name: module for module, names in _FACTS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
