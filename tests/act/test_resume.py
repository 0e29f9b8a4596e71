"""With which words the command is started again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from diag.agent.act.resume import Resume, resume
from diag.model.observations import CheckpointFolder

FILES = {
    "train.py": "parser.add_argument('--resume_from_checkpoint')",
    "other.py": "print(1)",
    "pkg/__main__.py": "p.add_argument('--mcore-model'); p.add_argument('--finetune')",
    "run.sh": "torchrun train.py --output_dir out",
    "takes.sh": "torchrun train.py $DIAG_RESUME_FLAGS",
}


def folder_of(path: str, kind: str) -> CheckpointFolder:
    given: dict[str, Any] = dict.fromkeys(CheckpointFolder.__slots__)
    return CheckpointFolder(**{**given, "path": path, "kind": kind})


HF = folder_of("/out/checkpoint-400", "hf_trainer")
MEGATRON = folder_of("/save/iter_0000400", "torch_dist")
SWIFT = folder_of("/out/v0/checkpoint-400", "torch_dist")


def again(line: str, whole: CheckpointFolder | None) -> Resume:
    words = shlex.split(line)
    return resume(
        words,
        whole,
        said=words,
        environment={},
        folder=Path(),
        read_text=lambda path: FILES.get(path.removeprefix("./")),
    )


@pytest.mark.parametrize(
    ("line", "whole", "expected"),
    [
        ("swift sft --model m --output_dir /out", HF, "--model m --output_dir /out --resume_from_checkpoint /out/checkpoint-400"),
        ("megatron rlhf --model m", SWIFT, "--model m --mcore_model /out/v0/checkpoint-400 --finetune false"),
        ("torchrun --nproc_per_node 8 pretrain_gpt.py --save /save", MEGATRON, "--save /save --load /save --ckpt-step 400"),
        ("torchrun train.py --lr 1", HF, "--lr 1 --resume_from_checkpoint /out/checkpoint-400"),
        ("python -m pkg --lr 1", SWIFT, "--lr 1 --mcore_model /out/v0/checkpoint-400 --finetune false"),
        # it takes the flag: it has it
        ("torchrun other.py --resume_from_checkpoint=/old --lr 1", HF, "--lr 1 --resume_from_checkpoint /out/checkpoint-400"),
        ("torchrun pretrain_gpt.py --load /base --save /save", MEGATRON, "--save /save --load /save --ckpt-step 400"),
    ],
)  # fmt: skip
def test_flags_go_behind_a_command_whose_program_is_known_to_take_them(
    line: str, whole: CheckpointFolder, expected: str
) -> None:
    plan = again(line, whole)

    words = shlex.join(plan.words)
    assert words.endswith(expected)
    assert shlex.split(line)[:2] == list(plan.words[:2])
    assert plan.text.startswith("with --")


@pytest.mark.parametrize(
    ("line", "whole", "text"),
    [
        ("torchrun other.py --lr 1", HF, "unchanged, as its program is not seen to take resume_from_checkpoint"),
        ("bash run.sh", HF, "unchanged, as a script starts it that does not use $DIAG_RESUME_FLAGS"),
        ("sh -c 'torchrun train.py --a 1'", HF, "unchanged, as a script starts it"),
        ("swift sft --model m", None, "from the start, as no whole checkpoint was seen"),
        ("megatron sft --model m", HF, "from the start: /out/checkpoint-400 holds weights only"),
    ],
)  # fmt: skip
def test_else_the_command_stays_as_it_is_and_that_is_told(
    line: str, whole: CheckpointFolder | None, text: str
) -> None:
    plan = again(line, whole)

    assert list(plan.words) == shlex.split(line)
    assert plan.text.startswith(text)


def test_a_script_that_uses_the_variable_gets_the_flags_in_it() -> None:
    plan = again("bash takes.sh", HF)

    assert plan.words == ("bash", "takes.sh")
    assert plan.flags == ("--resume_from_checkpoint", "/out/checkpoint-400")
    assert plan.text.endswith("in its variable DIAG_RESUME_FLAGS")


def test_a_path_with_blanks_stays_one_word() -> None:
    plan = again("torchrun train.py", folder_of("/my out/checkpoint-4", "hf_trainer"))

    assert plan.words[-1] == "/my out/checkpoint-4"
