"""Jobs that end well, with words in their output that frighten."""

from tests.labs.log_lab.torch.case import Case

__all__ = ["HEALTHY"]

RUN = "torchrun --nproc_per_node 2 --master_port {port} train.py "
LISTEN = "{python} {lab}/scripts/listen.py {port} & sleep 1"
CPU = "accelerate launch --multi_gpu --num_processes 2 --main_process_port {port} train.py"


def _zero(name: str, case: str, why: str, needs: tuple[str, ...] = ()) -> Case:
    return Case(
        f"healthy-deepspeed{name}",
        f"DS_ACCELERATOR=cpu deepspeed --num_gpus 2 --master_port {{port}} train.py {case}",
        "none",
        why,
        script="zero",
        launcher="deepspeed",
        needs=("deepspeed", *needs),
    )


def _accelerate(name: str, case: str, why: str, setup: str = "", since: tuple[int, int] = (0, 0)) -> Case:
    return Case(
        f"healthy-accelerate{name}",
        CPU + case,
        "none",
        why,
        script="accelerated",
        launcher="accelerate launch",
        needs=("accelerate",),
        setup=setup,
        since=since,
    )


def _healthy(name: str, case: str, why: str, before: str = "") -> Case:
    return Case(f"healthy-{name}", before + RUN + case, "none", why, script="healthy")


HEALTHY: tuple[Case, ...] = (
    _healthy("plain", "plain", "nothing but torchrun's banner on OMP_NUM_THREADS"),
    _healthy("cpp-log-info", "plain", "TORCH_CPP_LOG_LEVEL=INFO", "TORCH_CPP_LOG_LEVEL=INFO "),
    _healthy("sample", "sample", "rank 0 prints a sample of the data that quotes error messages"),
    _healthy("optional-modules", "optional", "modules that are optional are missing, one with a traceback"),
    _healthy("retries", "retries", "two attempts fail with a logged traceback, the third goes well"),
    _healthy("save-elsewhere", "save", "a first folder cannot be written, the second can"),
    _healthy("warnings", "warnings", "many FutureWarning and UserWarning"),
    _healthy("loss-scale", "scaler", "the loss scale is found: two steps are skipped"),
    _healthy("no-destroy", "no-destroy", "the program ends without destroy_process_group"),
    _healthy("semaphores", "semaphores", "a rank leaves without giving back its semaphores"),
    Case(
        "healthy-standalone-tty",
        "torchrun --standalone --nproc_per_node 2 train.py plain",
        "none",
        "--standalone on a terminal",
        script="healthy",
        tty=True,
    ),
    Case(
        "healthy-tokenizers",
        RUN,
        "none",
        "tokenizers warns of a fork",
        script="tokenizing",
        needs=("tokenizers",),
    ),
    Case(
        "healthy-trainer",
        "torchrun --nproc_per_node 2 --master_port {port} train.py",
        "none",
        "transformers' Trainer with gradient checkpointing",
        script="trainer",
        needs=("transformers", "accelerate"),
    ),
    Case(
        "healthy-recompile",
        RUN + "plain",
        "none",
        "torch.compile logs recompiles, fewer than the limit",
        script="recompiles",
    ),
    _zero("", "plain", "DeepSpeed's own banner and warnings"),
    _zero("-scale", "scale-found", "fp16: DeepSpeed skips steps until the loss scale is found"),
    _zero("-lora", "lora", "LoRA under ZeRO-3", ("peft",)),
    _zero("-zero2", "offload-param", "ZeRO-2 with an offload_param, which is of ZeRO-3 and not looked at"),
    _zero("-save", "save", "ZeRO-1 writes a checkpoint"),
    _accelerate("", "", "accelerate's warning on defaults that it chose"),
    _accelerate("-port", "", "the port was taken and accelerate 1.15 took a free one", LISTEN, (2, 13)),
    _accelerate("-save", " save", "accelerate writes its state and reads it again"),
    Case(
        "healthy-accelerate-deepspeed",
        "DS_ACCELERATOR=cpu accelerate launch --use_deepspeed --num_processes 2 --num_machines 1 --mixed_precision no "
        "--main_process_port {port} --zero_stage 3 --deepspeed_config_file ds_z2.json train.py gpu",
        "none",
        "accelerate with ZeRO-2 of a file, beside which --zero_stage is not looked at",
        script="accelerated",
        launcher="accelerate launch",
        needs=("accelerate", "deepspeed"),
        setup='echo \'{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4, '
        '"gradient_accumulation_steps": "auto"}\' > ds_z2.json',
    ),
    Case(
        "restarted-once",
        "torchrun --nproc_per_node 2 --max_restarts 1 --master_port {port} train.py",
        "rank-died",
        "rank 1 raised ConnectionResetError in the first attempt of --max_restarts 1",
        script="flaky",
        ranks=(1,),
    ),
)
