"""Starts that fail: ports, host names, rendezvous, numbers of nodes and ranks, files that are not there."""

from tests.labs.log_lab.torch.case import Case

__all__ = ["LAUNCH"]

LISTEN = "{python} {lab}/scripts/listen.py {port} & sleep 1"
C10D = "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:{port} --rdzv_id run7 "


def _env(rank: int, world: int) -> str:
    return f"RANK={rank} WORLD_SIZE={world} LOCAL_RANK={rank} MASTER_ADDR=127.0.0.1 MASTER_PORT={{port}} "


LAUNCH: tuple[Case, ...] = (
    Case(
        "port-taken",
        "torchrun --nproc_per_node 2 --master_port {port} train.py",
        "port-in-use",
        "another process already listened on --master_port",
        script="hello",
        setup=LISTEN,
    ),
    Case(
        "port-taken-c10d",
        "torchrun --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint localhost:{port} train.py",
        "rendezvous-failure",
        "a process that speaks another protocol held the port of --rdzv_endpoint",
        script="hello",
        setup=LISTEN,
        also=("port-in-use",),
    ),
    Case(
        "port-taken-env",
        _env(0, 1) + "python train.py",
        "port-in-use",
        "started by hand, another process listened on MASTER_PORT",
        script="hello",
        launcher="python",
        nproc=1,
        setup=LISTEN,
        ranks=(0,),
    ),
    Case(
        "port-two-nodes-rank-0",
        "torchrun --nnodes 2 --node_rank 0 --nproc_per_node 1 --master_addr 127.0.0.1 "
        "--master_port {port} train.py & sleep 4; torchrun --nnodes 2 --node_rank 0 --nproc_per_node 1 --master_addr 127.0.0.1 "
        "--master_port {port} train.py; kill %1; wait",
        "port-in-use",
        "both nodes were started with --node_rank 0",
        script="hello",
        also=("launch-mismatch",),
    ),
    Case(
        "host-unknown",
        "torchrun --nnodes 2 --node_rank 1 --nproc_per_node 2 --master_addr trainer-0.train-svc --master_port 29500 train.py",
        "hostname-resolution",
        "--master_addr is a name that nothing resolves",
        script="hello",
        timeout=200,
        runs_on=True,
    ),
    Case(
        "host-unknown-c10d",
        "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint trainer-0.train-svc:29500 "
        "--rdzv_conf timeout=15 train.py",
        "hostname-resolution",
        "--rdzv_endpoint names a host that nothing resolves",
        script="hello",
        timeout=200,
    ),
    Case(
        "host-unknown-env",
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=trainer-0.train-svc MASTER_PORT=29500 PG_TIMEOUT=15 python train.py",
        "hostname-resolution",
        "MASTER_ADDR is a name that nothing resolves; started by hand",
        script="hello",
        launcher="python",
        nproc=1,
        timeout=200,
    ),
    Case(
        "rdzv-node-missing",
        C10D + "--rdzv_conf join_timeout=12,timeout=12 train.py",
        "rendezvous-failure",
        "the second of two nodes never came (c10d)",
        script="hello",
    ),
    Case(
        "rdzv-static-node-missing",
        "torchrun --nnodes 2 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 "
        "--master_port {port} --rdzv_conf timeout=12 train.py",
        "rendezvous-failure",
        "the second of two nodes never came (static)",
        script="hello",
    ),
    Case(
        "rdzv-refused",
        "torchrun --nnodes 2 --node_rank 1 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port {port} "
        "--rdzv_conf timeout=15 train.py",
        "rendezvous-failure",
        "nothing listened on the master's port (static)",
        script="hello",
        timeout=200,
    ),
    Case(
        "rdzv-refused-c10d",
        "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.2:{port} "
        "--rdzv_conf timeout=12,is_host=0 train.py",
        "rendezvous-failure",
        "nothing listened on the endpoint (c10d)",
        script="hello",
        timeout=200,
    ),
    Case(
        "rdzv-etcd-missing",
        "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend etcd-v2 --rdzv_endpoint 127.0.0.1:{port} train.py",
        "missing-module",
        "--rdzv_backend etcd-v2 without the package python-etcd",
        script="hello",
    ),
    Case(
        "world-size-too-large",
        _env(0, 4) + "PG_TIMEOUT=10 python train.py & " + _env(1, 4) + "PG_TIMEOUT=10 python train.py; wait",
        "rendezvous-failure",
        "WORLD_SIZE=4 but only ranks 0 and 1 were started",
        script="hello",
        launcher="python",
        also=("launch-mismatch",),
    ),
    Case(
        "env-no-rank",
        "python train.py",
        "launch-mismatch",
        "a script for torchrun was started with python",
        script="hello",
        launcher="python",
        nproc=1,
        also=("rendezvous-failure",),
    ),
    Case(
        "env-no-master",
        "SLURM_PROCID=0 RANK=0 WORLD_SIZE=2 python train.py",
        "launch-mismatch",
        "started as srun would, MASTER_ADDR was never exported",
        script="hello",
        launcher="python",
        nproc=1,
        also=("rendezvous-failure",),
    ),
    Case(
        "env-rank-too-large",
        _env(2, 2) + "PG_TIMEOUT=8 python train.py",
        "rendezvous-failure",
        "RANK=2 with WORLD_SIZE=2",
        script="hello",
        launcher="python",
        nproc=1,
        also=("launch-mismatch", "rank-died"),
    ),
    Case(
        "script-missing",
        "torchrun --nproc_per_node 2 --master_port {port} trian.py",
        "rank-died",
        "the script's name was misspelt",
    ),
    Case(
        "script-argument-unknown",
        "torchrun --nproc_per_node 2 --master_port {port} train.py --learning-rte 1e-4",
        "rank-died",
        "the script does not know an argument",
        script="arguments",
    ),
    Case(
        "torchrun-nproc-bad",
        "torchrun --nproc_per_node gpus train.py",
        "launch-mismatch",
        "--nproc_per_node gpus is no number",
        script="hello",
        also=("rank-died",),
    ),
    Case(
        "torchrun-nproc-gpu",
        "torchrun --nproc_per_node gpu train.py",
        "launch-mismatch",
        "--nproc_per_node gpu without a GPU",
        script="hello",
        also=("rank-died",),
    ),
    Case(
        "restarts-used-up",
        "torchrun --nproc_per_node 2 --max_restarts 2 --master_port {port} train.py key",
        "rank-died",
        "rank 1 raised KeyError; in the next attempts gloo did not connect any more",
        script="ranks",
        ranks=(1,),
    ),
    Case(
        "restarts-record",
        "torchrun --nproc_per_node 2 --master_port {port} train.py",
        "rank-died",
        "main() is decorated with @record: the table names the error of rank 1",
        script="recorded",
        ranks=(1,),
    ),
    Case(
        "redirected-per-rank",
        "torchrun --nproc_per_node 2 --master_port {port} --log_dir logs --redirects 3 --tee 3 train.py key",
        "rank-died",
        "rank 1 raised KeyError, output teed with [default1]: in front",
        script="ranks",
        ranks=(1,),
    ),
    Case(
        "nccl-not-built",
        "BACKEND=nccl torchrun --nproc_per_node 2 --master_port {port} train.py",
        "version-mismatch",
        "backend nccl with a CPU build of torch",
        script="hello",
        cuda_build=False,
        also=("nccl-init-error", "rank-died"),
    ),
    Case(
        "nccl-no-gpu",
        "BACKEND=nccl torchrun --nproc_per_node 2 --master_port {port} train.py",
        "nccl-init-error",
        "backend nccl on a machine without a GPU",
        script="hello",
        cuda_build=True,
        also=("launch-mismatch", "rank-died"),
    ),
    Case(
        "cuda-not-compiled",
        "DEVICE=0 torchrun --nproc_per_node 2 --master_port {port} train.py",
        "version-mismatch",
        "torch.cuda.set_device with a CPU build of torch",
        script="hello",
        cuda_build=False,
        also=("rank-died",),
    ),
    Case(
        "cuda-no-driver",
        "DEVICE=0 torchrun --nproc_per_node 2 --master_port {port} train.py",
        "rank-died",
        "torch.cuda.set_device on a machine without an NVIDIA driver",
        script="hello",
        cuda_build=True,
    ),
)
