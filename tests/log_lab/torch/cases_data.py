"""Data that cannot be read, checkpoints that cannot be written or loaded, numbers that go wrong, functions compiled too often."""

from tests.log_lab.torch.case import Case

__all__ = ["DATA"]


def _case(
    name: str,
    script: str,
    case: str,
    expect: str,
    why: str,
    *,
    before: str = "",
    setup: str = "",
    mounts: bool = False,
    ranks: tuple[int, ...] = (),
    also: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    since: tuple[int, int] = (0, 0),
    until: tuple[int, int] = (99, 0),
    launch: str = "torchrun",
) -> Case:
    command = f"{before}{launch} --nproc_per_node 2 --master_port {{port}} train.py {case}"
    return Case(
        name,
        command,
        expect,
        why,
        script=script,
        ranks=ranks,
        also=also,
        setup=setup,
        mounts=mounts,
        needs=needs,
        since=since,
        until=until,
    )


SMALL_SHM = "mount -t tmpfs -o size=2m tmpfs /dev/shm"
SMALL_DISK = "mkdir -p /mnt; mount -t tmpfs -o size=6m tmpfs /mnt"
READ_ONLY = "mkdir -p /mnt; mount -t tmpfs -o size=6m,ro tmpfs /mnt"
# root without the right to write where the mode forbids it
PLAIN_USER = "setpriv --bounding-set -dac_override,-dac_read_search "
PIDS = """d=/sys/fs/cgroup/pids/log-lab-$$; mkdir $d; echo 40 > $d/pids.max; echo $$ > $d/cgroup.procs
trap "echo $$ > $d/../cgroup.procs; sleep 1; rmdir $d 2>/dev/null" EXIT"""

_LOADER = (
    ("worker-sigkill", "kill", "dataloader-worker-died", "a DataLoader worker of rank 1 sent itself SIGKILL", ()),
    ("worker-sigsegv", "segv", "dataloader-worker-died", "a DataLoader worker of rank 1 read address 0", ()),
    ("worker-exit", "exit", "dataloader-worker-died", "a DataLoader worker of rank 1 ended with os._exit(7)", ()),
    ("worker-keyerror", "key", "dataset-schema", "a sample of rank 1 has no column chosen", ("rank-died",)),
    ("worker-json", "json", "dataset-format", "a line of rank 1's data is cut JSON", ("rank-died",)),
    ("worker-file-missing", "file", "rank-died", "a shard that rank 1 reads is not there", ("dataset-format",)),
    ("worker-pickle", "pickle", "dataset-format", "a sample of rank 1 is a cut pickle", ("rank-died",)),
    ("worker-utf8", "utf8", "dataset-format", "a line of rank 1's data is not UTF-8", ("rank-died",)),
    (
        "worker-timeout",
        "slow",
        "dataloader-deadlock",
        "a worker of rank 1 slept 60 s, the DataLoader's timeout is 5 s",
        ("io-blocked",),
    ),
    ("worker-memory", "memory", "host-oom", "a worker of rank 1 asked for a tensor of 64 TiB", ()),
)

DATA: tuple[Case, ...] = (
    *(_case(name, "loader", case, expect, why, ranks=(1,), also=also) for name, case, expect, why, also in _LOADER),
    _case("worker-cuda-in-fork", "loader", "cuda", "rank-died", "a worker of rank 1 used CUDA, which is not there", ranks=(1,)),
    _case(
        "worker-ragged", "loader", "ragged", "dataset-format", "samples of different length without padding", also=("rank-died",)
    ),
    _case("worker-io-error", "loader", "io", "rank-died", "the dataset raised EIO on both ranks", also=("io-blocked",)),
    _case("spawn-lambda", "loader", "spawn", "rank-died", "workers are spawned and collate_fn is a lambda"),
    _case("prefetch-without-workers", "loader", "no-workers", "rank-died", "prefetch_factor without workers"),
    _case("shm-small", "loader", "shm", "shm-too-small", "/dev/shm of 2 MiB, samples of 8 MiB", setup=SMALL_SHM, mounts=True),
    _case(
        "shm-small-file-system",
        "loader",
        "shm-fs",
        "shm-too-small",
        "the same with sharing strategy file_system",
        setup=SMALL_SHM,
        mounts=True,
    ),
    _case("fd-limit", "loader", "files", "fd-limit", "ulimit -n 64, batches are kept", setup="ulimit -n 64"),
    _case("pids-limit", "loader", "files", "pids-limit", "pids.max 40, two ranks with 8 workers each", setup=PIDS),
    _case("ckpt-shapes", "checkpoint", "shapes", "checkpoint-args-mismatch", "hidden size 64, the checkpoint has 32"),
    _case("ckpt-classes", "checkpoint", "classes", "checkpoint-args-mismatch", "8 classes, the checkpoint has 4"),
    _case("ckpt-keys", "checkpoint", "keys", "checkpoint-args-mismatch", "keys with module. in front loaded without DDP"),
    _case(
        "ckpt-optimizer", "checkpoint", "optimizer", "checkpoint-args-mismatch", "the optimizer had two tensors, now has three"
    ),
    _case("ckpt-truncated", "checkpoint", "truncated", "checkpoint-corrupt", "model.pt was cut in half"),
    _case("ckpt-truncated-large", "checkpoint", "full-truncated", "checkpoint-corrupt", "model.pt of 16 MB was cut in half"),
    _case("ckpt-empty", "checkpoint", "empty", "checkpoint-corrupt", "model.pt has no byte"),
    _case("ckpt-zeros", "checkpoint", "zeros", "checkpoint-corrupt", "model.pt is all zeros", also=("version-mismatch",)),
    _case("ckpt-html", "checkpoint", "html", "checkpoint-corrupt", "model.pt is a web page"),
    _case("ckpt-missing", "checkpoint", "missing", "checkpoint-missing", "model.pt was removed"),
    _case(
        "ckpt-weights-only",
        "checkpoint",
        "object",
        "version-mismatch",
        "an object of the program lies in model.pt, torch >= 2.6",
        since=(2, 6),
        also=("checkpoint-corrupt", "rank-died"),
    ),
    _case(
        "ckpt-safetensors-cut",
        "checkpoint",
        "safe-truncated",
        "checkpoint-corrupt",
        "model.safetensors was cut",
        needs=("safetensors",),
    ),
    _case(
        "ckpt-safetensors-lfs",
        "checkpoint",
        "safe-lfs",
        "checkpoint-corrupt",
        "model.safetensors is a pointer of git lfs",
        needs=("safetensors",),
    ),
    _case(
        "ckpt-safetensors-full",
        "checkpoint",
        "safe-full",
        "disk-full",
        "save_file on a file system of 6 MiB",
        before="CHECKPOINTS=/mnt/checkpoint-100 ",
        setup=SMALL_DISK,
        mounts=True,
        needs=("safetensors",),
    ),
    _case(
        "ckpt-disk-full",
        "checkpoint",
        "full",
        "disk-full",
        "torch.save on a file system of 6 MiB",
        before="CHECKPOINTS=/mnt/checkpoint-100 ",
        setup=SMALL_DISK,
        mounts=True,
        ranks=(0,),
        also=("checkpoint-write-error",),
    ),
    _case(
        "ckpt-dcp-full",
        "checkpoint",
        "dcp-full",
        "disk-full",
        "torch.distributed.checkpoint on a file system of 6 MiB",
        before="CHECKPOINTS=/mnt/checkpoint-100 ",
        setup=SMALL_DISK,
        mounts=True,
        also=("checkpoint-write-error",),
    ),
    _case(
        "ckpt-read-only",
        "checkpoint",
        "save",
        "checkpoint-write-error",
        "torch.save on a read-only file system",
        before="CHECKPOINTS=/mnt/checkpoint-100 ",
        setup=READ_ONLY,
        mounts=True,
    ),
    _case(
        "ckpt-permission",
        "checkpoint",
        "save",
        "checkpoint-write-error",
        "the checkpoint's folder belongs to another user",
        before="CHECKPOINTS=/mnt/run/checkpoint-100 ",
        mounts=True,
        launch=PLAIN_USER + "torchrun",
        setup="mount -t tmpfs tmpfs /mnt; mkdir -m 555 /mnt/run",
    ),
    _case(
        "ckpt-parent-missing",
        "checkpoint",
        "save",
        "checkpoint-write-error",
        "the parent of the checkpoint's folder is not there",
        before="CHECKPOINTS=/mnt/runs/7/checkpoint-100 ",
        mounts=True,
        setup="mount -t tmpfs tmpfs /mnt",
    ),
    _case(
        "ckpt-dcp-key", "checkpoint", "dcp-key", "checkpoint-args-mismatch", "the model has a tensor that the checkpoint lacks"
    ),
    _case("ckpt-dcp-shape", "checkpoint", "dcp-shape", "checkpoint-args-mismatch", "hidden size 64, the checkpoint (dcp) has 32"),
    _case(
        "ckpt-dcp-metadata",
        "checkpoint",
        "dcp-metadata",
        "checkpoint-missing",
        ".metadata was removed",
        also=("checkpoint-corrupt",),
    ),
    _case("nan-raise", "numbers", "raise", "loss-nan", "rank 1 checked its loss and raised FloatingPointError", ranks=(1,)),
    _case("nan-assert", "numbers", "assert", "loss-nan", "rank 1 checked its loss as Megatron does", ranks=(1,)),
    _case("nan-printed", "numbers", "printed", "loss-nan", "rank 1's loss turned NaN at step 12 and nobody stopped", ranks=(1,)),
    _case("nan-grad-clip", "numbers", "clip", "grad-nan", "clip_grad_norm_ with error_if_nonfinite on rank 1", ranks=(1,)),
    _case("nan-anomaly", "numbers", "anomaly", "grad-nan", "detect_anomaly found NaN in a backward function"),
    _case(
        "recompile-limit", "numbers", "recompile", "recompile-limit", "a compiled function met more than 8 values", since=(2, 13)
    ),
    _case("recompile-limit-fullgraph", "numbers", "recompile-full", "recompile-limit", "the same with fullgraph=True"),
)
