"""DeepSpeed and accelerate: configurations, launchers, operators."""

from tests.labs.log_lab.torch.case import Case

__all__ = ["LIBRARY"]

SAVE = "DS_ACCELERATOR=cpu deepspeed --num_gpus 2 --master_port {port} train.py save"
LISTEN = "{python} {lab}/scripts/listen.py {port} & sleep 1"


def _zero(
    name: str,
    case: str,
    expect: str,
    why: str,
    *,
    also: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
    setup: str = "",
    needs: tuple[str, ...] = (),
    nproc: int = 2,
    since: tuple[int, int] = (0, 0),
    until: tuple[int, int] = (99, 0),
    launch: str = "DS_ACCELERATOR=cpu deepspeed --num_gpus 2 --master_port {port} ",
) -> Case:
    return Case(
        name,
        f"{launch}train.py {case}",
        expect,
        why,
        script="zero",
        launcher="deepspeed",
        nproc=nproc,
        ranks=ranks,
        also=also,
        needs=("deepspeed", *needs),
        setup=setup,
        since=since,
        until=until,
        timeout=200,
    )


def _launcher(
    name: str, arguments: str, expect: str, why: str, *, also: tuple[str, ...] = (), setup: str = ""
) -> Case:
    return Case(
        name,
        f"DS_ACCELERATOR=cpu deepspeed {arguments} train.py key",
        expect,
        why,
        script="zero",
        launcher="deepspeed",
        also=also,
        needs=("deepspeed",),
        setup=setup,
    )


def _operator(
    name: str,
    operator: str,
    expect: str,
    why: str,
    *,
    before: str = "DS_ACCELERATOR=cpu ",
    also: tuple[str, ...] = (),
    setup: str = "",
    cuda_build: bool | None = None,
    mounts: bool = False,
) -> Case:
    return Case(
        name,
        f"{before}python train.py {operator}",
        expect,
        why,
        script="operators",
        launcher="python",
        nproc=1,
        also=also,
        needs=("deepspeed",),
        setup=setup,
        cuda_build=cuda_build,
        mounts=mounts,
        timeout=240,
    )


def _accelerate(
    name: str,
    arguments: str,
    expect: str,
    why: str,
    *,
    case: str = "",
    ranks: tuple[int, ...] = (),
    setup: str = "",
    also: tuple[str, ...] = (),
    before: str = "",
    needs: tuple[str, ...] = (),
    since: tuple[int, int] = (0, 0),
    until: tuple[int, int] = (99, 0),
) -> Case:
    return Case(
        name,
        f"{before}accelerate launch {arguments} train.py {case}".rstrip(),
        expect,
        why,
        script="accelerated",
        launcher="accelerate launch",
        ranks=ranks,
        also=also,
        needs=("accelerate", *needs),
        setup=setup,
        since=since,
        until=until,
    )


# with --cpu accelerate starts a single process whatever --num_processes says; the script keeps to the CPU by
# itself
CPU = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --main_process_port {port}"
CONFIG = "printf 'compute_environment: LOCAL_MACHINE\\ndistributed_type: MULTI_CPU\\nuse_cpu: true\\nnum_processes: 2\\n"
ZERO = "--use_deepspeed --num_processes 2 --num_machines 1 --mixed_precision no --main_process_port {port} "

LIBRARY: tuple[Case, ...] = (
    _zero(
        "ds-batch",
        "batch",
        "launch-mismatch",
        "train_batch_size 32, micro batch 2, 2 ranks",
        also=("rank-died",),
    ),
    _zero(
        "ds-no-batch",
        "no-batch",
        "rank-died",
        "no batch size in the configuration",
        also=("launch-mismatch",),
    ),
    _zero(
        "ds-auto",
        "auto",
        "rank-died",
        "`auto` in a configuration that no Trainer fills in",
        also=("launch-mismatch",),
    ),
    _zero(
        "ds-unknown-key",
        "unknown-key",
        "rank-died",
        "a key of zero_optimization is misspelt",
        also=("version-mismatch",),
    ),
    _zero("ds-stage", "stage", "rank-died", "ZeRO stage 4", also=("version-mismatch",)),
    _zero("ds-fp16-bf16", "both", "rank-died", "fp16 and bf16 both enabled"),
    _zero("ds-json", "json", "rank-died", "the configuration file is no valid JSON"),
    _zero("ds-config-missing", "no-file", "rank-died", "the configuration file is not there"),
    _zero("ds-fp16-cpu", "fp16", "rank-died", "fp16 on a CPU"),
    _zero("ds-optimizer-unknown", "adam", "rank-died", "an optimizer that does not exist"),
    _zero(
        "ds-low-cpu-mem",
        "low-cpu-mem",
        "rank-died",
        "from_pretrained with device_map under ZeRO-3",
        needs=("transformers",),
    ),
    _zero("ds-rank-keyerror", "key", "rank-died", "rank 1 raised KeyError", ranks=(1,)),
    _zero("ds-offload-client-optimizer", "offload", "rank-died", "optimizer offload with torch's own AdamW"),
    _zero(
        "ds-resume-missing",
        "resume",
        "checkpoint-missing",
        "latest names a folder that is not there; DeepSpeed says only that its list of files is empty",
        also=("rank-died",),
    ),
    _zero("ds-resume-shape", "resume-shape", "checkpoint-args-mismatch", "width 16, the checkpoint has 8"),
    _zero("ds-rank-sigkill", "kill", "rank-died", "rank 1 sent itself SIGKILL", ranks=(1,)),
    _zero(
        "ds-resume-tag",
        "resume-tag",
        "checkpoint-missing",
        "load_checkpoint names a tag that is not there; DeepSpeed says only that its list of files is empty",
        also=("rank-died",),
        setup=SAVE,
    ),
    _zero(
        "ds-resume-nothing",
        "resume-nothing",
        "checkpoint-missing",
        "the folder of checkpoints has no file latest",
    ),
    _zero(
        "ds-resume-world",
        "resume-world",
        "checkpoint-args-mismatch",
        "a ZeRO-1 checkpoint of 2 ranks, resumed with 1",
        also=("launch-mismatch",),
        setup=SAVE,
        nproc=1,
        launch="DS_ACCELERATOR=cpu deepspeed --num_gpus 1 --master_port {port} ",
    ),
    _zero(
        "ds-device-unknown",
        "device",
        "rank-died",
        "offload_param to a device that is none",
        also=("version-mismatch",),
    ),
    _zero(
        "ds-wrong-type",
        "type",
        "rank-died",
        "a number of the configuration is a word",
        also=("version-mismatch",),
    ),
    _zero(
        "ds-overflow",
        "overflow",
        "fp16-overflow",
        "the loss is inf from step 4 until the loss scale is at its minimum",
    ),
    _zero(
        "ds-zero3-outside",
        "outside",
        "rank-died",
        "a weight that ZeRO-3 has parted is read outside of forward",
    ),
    _zero(
        "ds-zero3-lora-late",
        "lora-late",
        "rank-died",
        "an adapter is loaded into a model that DeepSpeed's ZeRO-3 holds already",
        needs=("peft",),
        until=(2, 12),
    ),
    _zero(
        "ds-peft-too-new",
        "lora-late",
        "version-mismatch",
        "peft imports a name that this transformers does not have (peft 0.19, transformers 4.57)",
        needs=("peft", "transformers"),
        since=(2, 13),
    ),
    _zero("ds-port-taken", "key", "port-in-use", "another process listened on --master_port", setup=LISTEN),
    _launcher(
        "ds-hostfile-slots",
        "--hostfile hostfile",
        "rank-died",
        "a line of the hostfile has no slots=",
        setup="printf 'worker-1 slots=4\\nworker-2\\n' > hostfile",
        also=("launch-mismatch",),
    ),
    _launcher(
        "ds-hostfile-twice",
        "--hostfile hostfile",
        "launch-mismatch",
        "a host stands twice in the hostfile",
        setup="printf 'worker-1 slots=4\\nworker-1 slots=4\\n' > hostfile",
        also=("rank-died",),
    ),
    _launcher(
        "ds-include-host",
        "--hostfile hostfile --include worker-3",
        "launch-mismatch",
        "--include names a host outside the hostfile",
        setup="printf 'worker-1 slots=4\\nworker-2 slots=4\\n' > hostfile",
        also=("rank-died",),
    ),
    _launcher(
        "ds-include-slot",
        "--hostfile hostfile --include worker-1:0,7",
        "launch-mismatch",
        "--include names slot 7 of 4",
        setup="printf 'worker-1 slots=4\\nworker-2 slots=4\\n' > hostfile",
        also=("rank-died",),
    ),
    _launcher(
        "ds-ssh-host-unknown",
        "--hostfile hostfile",
        "rank-died",
        "hosts of the hostfile that nothing resolves; the log says only that ssh failed",
        setup="printf 'worker-1 slots=2\\nworker-2 slots=2\\n' > hostfile",
        also=("hostname-resolution", "rendezvous-failure"),
    ),
    _operator(
        "ds-op-no-cuda-home",
        "FusedAdamBuilder",
        "cuda-version-mismatch",
        "an operator for GPUs without nvcc",
        before="env -u CUDA_HOME DS_ACCELERATOR=cuda ",
        setup="mount -t tmpfs tmpfs /usr/local/cuda/; mount --bind /dev/null $(command -v nvcc)",
        mounts=True,
        also=("missing-header", "rank-died"),
    ),
    _operator(
        "ds-op-cuda-version",
        "FusedAdamBuilder",
        "cuda-version-mismatch",
        "an operator is compiled with another CUDA than torch",
        before="DS_ACCELERATOR=cuda CUDA_HOME=/usr/local/cuda ",
        cuda_build=True,
    ),
    _operator(
        "ds-op-header",
        "CCLCommBuilder",
        "missing-header",
        "oneCCL's headers are not installed",
        also=("rank-died",),
    ),
    _operator(
        "ds-op-aio",
        "AsyncIOBuilder",
        "missing-header",
        "libaio's headers are not installed",
        also=("rank-died",),
    ),
    _accelerate("acc-keyerror", CPU, "rank-died", "rank 1 raised KeyError", ranks=(1,), case="key"),
    _accelerate(
        "acc-memory", CPU, "host-oom", "rank 1 asked for a tensor of 64 TiB", ranks=(1,), case="memory"
    ),
    _accelerate(
        "acc-resume-missing",
        CPU,
        "checkpoint-missing",
        "load_state of a folder that is not there",
        case="resume",
    ),
    _accelerate(
        "acc-port-taken",
        CPU,
        "port-in-use",
        "another process listened on --main_process_port (accelerate 1.7 gives up)",
        setup=LISTEN,
        case="key",
        until=(2, 12),
    ),
    _accelerate(
        "acc-port-moved",
        CPU,
        "rank-died",
        "rank 1 raised KeyError; before that another process listened on --main_process_port and accelerate 1.15 took a free one",
        ranks=(1,),
        setup=LISTEN,
        case="key",
        since=(2, 13),
    ),
    _accelerate("acc-sigkill", CPU, "rank-died", "rank 1 sent itself SIGKILL", ranks=(1,), case="kill"),
    _accelerate(
        "acc-shapes",
        CPU + " --debug",
        "rank-desync",
        "gather of 4 rows on rank 0 and 3 on rank 1, --debug",
        case="shapes",
    ),
    _accelerate(
        "acc-two-kinds",
        "--cpu --multi_gpu --num_processes 2",
        "launch-mismatch",
        "--cpu and --multi_gpu",
        also=("rank-died",),
    ),
    _accelerate(
        "acc-gpu-ids",
        "--config_file multi.yaml",
        "launch-mismatch",
        "distributed_type MULTI_GPU with a single id in gpu_ids",
        setup='printf \'compute_environment: LOCAL_MACHINE\\ndistributed_type: MULTI_GPU\\ngpu_ids: "0"\\nnum_machines: 1\\n'
        "num_processes: 2\\n' > multi.yaml",
        also=("rank-died",),
    ),
    _accelerate(
        "acc-config-yaml",
        "--config_file fsdp.yaml",
        "rank-died",
        "the configuration file is no valid YAML",
        setup=CONFIG + "mixed_precision: no: bf16\\n' > fsdp.yaml",
    ),
    _accelerate(
        "acc-config-type",
        "--config_file fsdp.yaml",
        "rank-died",
        "a distributed_type that is none",
        setup=CONFIG.replace("MULTI_CPU", "MULTI_GPUS") + "' > fsdp.yaml",
        also=("version-mismatch",),
    ),
    _accelerate(
        "acc-ds-config-missing",
        ZERO + "--deepspeed_config_file conf/ds_z3.json",
        "rank-died",
        "--deepspeed_config_file is not there",
        case="gpu",
        before="DS_ACCELERATOR=cpu ",
        needs=("deepspeed",),
    ),
    _accelerate(
        "acc-config-missing", "--config_file conf/fsdp.yaml", "rank-died", "--config_file is not there"
    ),
    _accelerate(
        "acc-config-key",
        "--config_file fsdp.yaml",
        "version-mismatch",
        "a key that this accelerate does not know",
        setup=CONFIG + "fsdp_version_x: 2\\nnum_nodes: 1\\n' > fsdp.yaml",
        also=("rank-died",),
    ),
    _accelerate(
        "acc-multi-gpu",
        "--multi_gpu --num_processes 1",
        "launch-mismatch",
        "--multi_gpu with one process",
        also=("rank-died",),
    ),
    _accelerate(
        "acc-multi-node",
        "--multi_gpu --num_processes 4 --num_machines 2 --machine_rank 0 --main_process_ip trainer-0.train-svc "
        "--main_process_port 29500",
        "hostname-resolution",
        "--main_process_ip is a name that nothing resolves",
    ),
)
