"""What is left of a job, as people had it: logs, stacks and journals, and what `diag replay` says of them. Logs are
written anew, with the lines that the programs print; captures are of this repository."""

from __future__ import annotations

import pytest

from tests.mission.cases import CAPTURES, of_replay, replayed

EPOCH = "[INFO:swift] The training of Epoch 0 starts...\n"
SAVE = (
    EPOCH
    + """\
 [2026-07-18 03:10:22] iteration      200/    2000 | elapsed time per iteration (ms): 13021.4 | lm loss: 6.214000E-01 |
saving checkpoint at iteration     200 to megatron_output/v0 in torch_dist format
[rank3]: Traceback (most recent call last):
[rank3]:   File "/opt/m/megatron/core/dist_checkpointing/strategies/filesystem_async.py", line 231, in write_preloaded_data_multiproc
[rank3]:     p.start()
[rank3]:   File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch
[rank3]:     self.pid = os.fork()
[rank3]: OSError: [Errno 12] Cannot allocate memory
"""
)
NO_TRAINING = """\
Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/site-packages/swift/megatron/utils/patcher.py", line 5, in <module>
    from megatron.training import get_args, initialize, training
ModuleNotFoundError: No module named 'megatron.training'
"""
HEADER = """\
      /tmp/pip-req-build-x1/transformer_engine/common/cudnn_utils.h:10:10: fatal error: cudnn.h: No such file or directory
         10 | #include <cudnn.h>
            |          ^~~~~~~~~
      compilation terminated.
"""
SYMBOL = """\
Traceback (most recent call last):
  File "/app/train.py", line 3, in <module>
    import flash_attn_2_cuda as flash_attn_gpu
ImportError: /opt/conda/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: \
undefined symbol: _ZNK3c106SymInt22maybe_as_int_slow_pathEv
"""
PRETRAINED = """\
Traceback (most recent call last):
  File "/opt/conda/lib/python3.10/site-packages/transformers/utils/import_utils.py", line 2347, in _get_module
    raise e
RuntimeError: operator torchvision::nms does not exist

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/train.py", line 2, in <module>
    from transformers import PreTrainedModel
ModuleNotFoundError: Could not import module 'PreTrainedModel'. Are this object's requirements defined correctly?
"""
NOT_REACHED = (
    "[rank1]: torch.distributed.DistNetworkError: The client socket has timed out after 900000ms while trying to connect "
    "to (mcore-0.mcore, 29500).\n"
)
TAKEN = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/conda/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 189, in _create_c10d_store
[rank0]:     return TCPStore(
[rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. \
port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
"""
ACCELERATOR = (
    "nohup: ignoring input\n[2026-07-18 01:45:16,013] [INFO] [real_accelerator.py:254:get_accelerator] "
    "Setting ds_accelerator to cuda (auto detect)\n"
)
SOCKETS = """\
pod-0:612:701 [0] NCCL INFO Bootstrap : Using eth0:10.244.3.17<0>
pod-0:612:701 [0] NCCL INFO NET/IB : No device found.
pod-0:612:701 [0] NCCL INFO NET/Socket : Using [0]eth0:10.244.3.17<0>
pod-0:612:701 [0] NCCL INFO Using network Socket
"""
WATCHDOG = (
    EPOCH
    + "[rank2]:[E718 02:11:07.120455122 ProcessGroupNCCL.cpp:685] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118, OpType=_ALLGATHER_BASE, NumelIn=2097152, NumelOut=16777216, Timeout(ms)=600000) ran for 600054 "
    "milliseconds before timing out.\n"
)
NAN = "".join(
    f"{{'loss': {loss}, 'grad_norm': 2.1, 'learning_rate': 1e-05, 'global_step/max_steps': '{step}/100'}}\n"
    for step, loss in ((5, 0.69), (10, 0.61), (15, "nan"))
)
HCCL = """\
[rank1]: RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64
[rank1]: EI0006: [PID: 1292] 2026-04-08-18:07:20.444.436 Getting socket times out. \
Reason: Remote Rank did not send the data in time. Please check the reason for the rank being stuck
"""

CASES = {
    "hang in Epoch 0": of_replay(
        (1, 14), "a real `megatron rlhf` that stands behind `The training of Epoch 0 starts...`: its log, py-spy dumps, /proc",
        CAPTURES / "loose" / "megatron_data_hang",
        ("rank 1 has waited for a batch from DataLoader worker pid 2458, which is blocked in",
         "`ls -l /proc/2458/fd` names the open file"),
    ),
    "hang of four ranks": of_replay(
        (1, 14, 15), "py-spy dumps, state, wait channel and I/O of four ranks, collected in one folder",
        CAPTURES / "loose" / "mega4_data_hang",
        ("rank 2 has waited for a batch from DataLoader worker pid 1938", "rank 3 waits in"),
        unproven="open files and memory maps, which only diag's own dumps have",
    ),
    "log that stops": of_replay(
        (1,), "the log alone, which ends with `The training of Epoch 0 starts...`", EPOCH,
        ("the log stops in phase first_step, without an error", "diag dump --all-ranks"), ("CRITICAL", "hung"),
    ),
    "sockets in a container": of_replay(
        (2,), "NCCL's log of two nodes with InfiniBand, in a container without /dev/infiniband",
        CAPTURES / "h200-net" / "no-device-nodes-node0",
        ("NCCL traffic between nodes over TCP sockets (eth0), not over RDMA: /dev/infiniband is not in the rank's container",
         "docker run --device=/dev/infiniband --ulimit memlock=-1 --cap-add=IPC_LOCK --network=host"),
    ),
    "sockets, four lines": of_replay(
        (2,), "four lines of NCCL: no IB device, and the network Socket", SOCKETS,
        ("it chose TCP sockets (eth0), and nothing shows whether the job has several nodes", "IPC_LOCK"),
    ),
    "fork refused in a save": of_replay(
        (3, 4), "`Cannot allocate memory` of a fork, behind `saving checkpoint at iteration 200`", SAVE,
        ("rank 3 could not start a process while saving a checkpoint after iteration 200: the kernel refused it",
         "vm.overcommit_memory=0"),
        unproven="a node of 1 TB",
    ),
    "no megatron.training": of_replay(
        (4, 5), "No module named 'megatron.training'", NO_TRAINING,
        ("megatron-core alone is installed, and ms-swift 3.x needs the tree of Megatron-LM", "core_r0.13.0 for ms-swift 3.7-3.9"),
    ),
    "cudnn.h": of_replay(
        (5,), "a build that ends with `cudnn.h: No such file or directory`", HEADER,
        ("a build needs cudnn.h, which is not installed", "No root is needed"), unproven="the build itself",
    ),
    "flash-attn": of_replay(
        (5,), "an undefined symbol of c10 in flash_attn_2_cuda", SYMBOL,
        ("it was built against another version", "pip install flash-attn --no-build-isolation"),
    ),
    "PreTrainedModel": of_replay(
        (5,), "Could not import module 'PreTrainedModel', below torchvision::nms", PRETRAINED,
        ("a package with operators for torch was built for another torch", "torch 2.7 with torchvision 0.22"),
    ),
    "MASTER_ADDR not reached": of_replay(
        (6, 7), "a rank that ended of `timed out ... while trying to connect to (mcore-0.mcore, 29500)`", NOT_REACHED,
        ("could not reach mcore-0.mcore:29500", "headless Service"),
    ),
    "small /dev/shm": of_replay(
        (9,), "DataLoader workers in a container with a full /dev/shm", CAPTURES / "loose" / "healthy__smallshm",
        ("shared memory ran out on rank 0", "docker --shm-size=16g or --ipc=host"),
    ),
    "port taken": of_replay(
        (11, 12), "EADDRINUSE on port 29500", TAKEN, ("port 29500 is taken on this node", 'ss -ltnp "sport = :29500"'),
    ),
    "ds_accelerator": of_replay(
        (11,), "a DeepSpeed log that ends with `Setting ds_accelerator to cuda (auto detect)`", ACCELERATOR,
        ("the log stops in phase rendezvous, without an error", "diag dump --all-ranks"), ("CRITICAL",),
        unproven="why: a log that stops does not say",
    ),
    "NCCL timeout": of_replay(
        (12,), "the watchdog's line of rank 2 after 600 s", WATCHDOG,
        ("rank 2 waited in a collective until its timeout; another rank did not come", "This rank is a victim"),
    ),
    "CUDA OOM": of_replay(
        (12,), "a rank without GPU memory, on two H200", CAPTURES / "loose" / "cuda_oom",
        ("rank 1 ran out of GPU memory", "diag estimate -- CMD"),
    ),
    "NaN": of_replay(
        (12,), "a loss of nan at step 15", NAN, ("the loss is nan at iteration 15; the last good value was 0.61 at iteration 10",),
    ),
    "HCCL": of_replay(
        (19,), "EI0006 of HCCL on a rank", HCCL,
        ("rank 1 waited for another rank's connection (HCCL) until the timeout", "HCCL_CONNECT_TIMEOUT"),
        unproven="an Ascend machine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


def test_of_a_job_on_one_node_sockets_are_no_matter() -> None:
    one = SOCKETS + (
        "pod-0:612:701 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0\n"
    )

    assert not [line for line in replayed(one)["en"] if "RDMA" in line]
