"""Ranks that die, leave or disagree: gloo, the launcher's table, and what the other ranks say of it."""

from tests.labs.log_lab.torch.case import Case

__all__ = ["RANKS"]


def _run(case: str, n: int = 2, before: str = "") -> str:
    return before + f"torchrun --nproc_per_node {n} --master_port {{port}} train.py {case}"


def _ranks(
    name: str,
    case: str,
    expect: str,
    why: str,
    *,
    n: int = 2,
    before: str = "",
    ranks: tuple[int, ...] | None = None,
    also: tuple[str, ...] = (),
    setup: str = "",
) -> Case:
    culprits = (n - 1,) if ranks is None else ranks
    return Case(
        name,
        _run(case, n, before),
        expect,
        why,
        script="ranks",
        nproc=n,
        ranks=culprits,
        also=also,
        setup=setup,
    )


SHORT = "PG_TIMEOUT=6 "
DETAIL = "TORCH_DISTRIBUTED_DEBUG=DETAIL "

RANKS: tuple[Case, ...] = (
    _ranks("rank-keyerror", "key", "rank-died", "rank 1 raised KeyError; rank 0 lost its connection to it"),
    _ranks(
        "rank-keyerror-3",
        "key",
        "rank-died",
        "rank 2 of 3 raised KeyError; ranks 0 and 1 lost their connections",
        n=3,
    ),
    _ranks("rank-sigkill", "kill", "rank-died", "rank 1 sent itself SIGKILL"),
    _ranks(
        "rank-sigkill-3",
        "kill",
        "rank-died",
        "rank 2 of 3 sent itself SIGKILL; the others lost their connections",
        n=3,
    ),
    _ranks("rank-sigsegv", "segv", "rank-died", "rank 1 read address 0"),
    _ranks(
        "rank-sigsegv-faulthandler",
        "segv",
        "rank-died",
        "rank 1 read address 0 with PYTHONFAULTHANDLER=1",
        before="PYTHONFAULTHANDLER=1 ",
    ),
    _ranks("rank-sigabrt", "abort", "rank-died", "rank 1 called abort()"),
    _ranks("rank-sigfpe", "fpe", "rank-died", "rank 1 sent itself SIGFPE"),
    _ranks("rank-exit-3", "exit", "rank-died", "rank 1 said why in a plain line and left with exit code 3"),
    _ranks(
        "rank-left-early",
        "leave",
        "rank-died",
        "rank 1 ended with code 0 while rank 0 went on",
        also=("rank-desync",),
    ),
    _ranks("rank-assert", "assert", "rank-died", "an assertion of the program failed on rank 1"),
    _ranks("rank-matmul-shapes", "matmul", "rank-died", "rank 1 multiplied matrices that do not fit"),
    _ranks("rank-cpu-allocator", "memory", "host-oom", "rank 1 asked for a tensor of 64 TiB in host memory"),
    _ranks("rank-memoryerror", "list-memory", "host-oom", "rank 1 asked for a bytearray of 64 TiB"),
    _ranks(
        "gloo-shapes",
        "shapes",
        "rank-desync",
        "rank 1 reduced 64 elements where rank 0 reduced 16",
        before=SHORT,
        ranks=(),
    ),
    _ranks(
        "gloo-shapes-detail",
        "shapes",
        "rank-desync",
        "the same with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        before=SHORT + DETAIL,
        ranks=(),
    ),
    _ranks(
        "gloo-collectives",
        "collectives",
        "collective-timeout",
        "rank 1 called broadcast where rank 0 called all_reduce",
        before=SHORT,
        ranks=(),
        also=("rank-desync",),
    ),
    _ranks(
        "gloo-collectives-detail",
        "collectives",
        "rank-desync",
        "the same with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        before=SHORT + DETAIL,
        ranks=(),
    ),
    _ranks(
        "gloo-dtypes-detail",
        "dtypes",
        "rank-desync",
        "rank 1 reduced float64 where rank 0 reduced float32, DETAIL",
        before=SHORT + DETAIL,
        ranks=(),
    ),
    _ranks(
        "gloo-collectives-detail-3",
        "collectives",
        "rank-desync",
        "rank 2 of 3 called broadcast, the others all_reduce, DETAIL",
        before=SHORT + DETAIL,
        n=3,
    ),
    _ranks(
        "gloo-timeout",
        "late",
        "collective-timeout",
        "rank 1 came 14 s late to a collective with a timeout of 6 s",
        before=SHORT,
        also=("hang",),
    ),
    _ranks(
        "gloo-timeout-3",
        "late",
        "collective-timeout",
        "rank 2 of 3 came 14 s late to a collective with a timeout of 6 s",
        before=SHORT,
        n=3,
        ranks=(),
    ),
    _ranks(
        "gloo-timeout-detail",
        "late",
        "collective-timeout",
        "rank 1 came 14 s late, DETAIL, timeout 6 s",
        before=SHORT + DETAIL,
    ),
    _ranks(
        "monitored-barrier",
        "monitored",
        "collective-timeout",
        "rank 1 did not come to monitored_barrier within 5 s",
    ),
    _ranks(
        "monitored-barrier-3",
        "monitored",
        "collective-timeout",
        "rank 2 of 3 did not come to monitored_barrier in 5 s",
        n=3,
    ),
    _ranks(
        "gather-object-lambda", "objects", "rank-died", "rank 1 gathered an object that cannot be pickled"
    ),
    _ranks(
        "ddp-param-shapes",
        "ddp-shapes",
        "rank-desync",
        "rank 1 built a larger layer than rank 0 before DDP wrapped it",
        also=("launch-mismatch",),
        before=SHORT,
    ),
    _ranks(
        "ddp-param-count",
        "ddp-count",
        "rank-desync",
        "rank 1 built a layer without bias before DDP wrapped it",
        before=SHORT,
    ),
    _ranks(
        "ddp-unused-parameters", "ddp-unused", "rank-died", "a layer without gradient under DDP", ranks=()
    ),
    _ranks(
        "rank-cgroup-oom",
        "grow",
        "rank-died",
        "rank 1 grew past its cgroup's memory and the kernel killed it: the log has no word of that",
        also=("host-oom",),
        setup="d=/sys/fs/cgroup/memory/log-lab-$$; mkdir $d; echo 1500M > $d/memory.limit_in_bytes; echo $$ > $d/cgroup.procs\n"
        'trap "echo $$ > $d/../cgroup.procs; sleep 1; rmdir $d 2>/dev/null" EXIT',
    ),
    # Not meant to fail: torch 2.13.0 itself crashes.
    Case(
        "rank-sigsegv-ddp-detail",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_CPP_LOG_LEVEL=INFO torchrun --nproc_per_node 2 --master_port {port} train.py plain",
        "rank-died",
        "torch itself crashed on both ranks in DDP with TORCH_DISTRIBUTED_DEBUG=DETAIL and TORCH_CPP_LOG_LEVEL=INFO",
        script="healthy",
        ranks=(0, 1),
    ),
)
