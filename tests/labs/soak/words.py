"""What the ranks print: lines of recorded logs, with numbers that move on. Standard library only, because
ranks import it.

Each form is that of tests/captures/logs/megatron_4.6.0_eval.log (ms-swift 4.6.0, megatron-core 0.16.1),
carriage returns and all.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

__all__ = ["NcclWords", "TrainingWords"]

_NCCL = Path(__file__).parents[2] / "captures/nccl/2.28.9/one-node"
_WARNING = (
    "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py:1102: UserWarning: 'pin_memory' argument is set as "
    "true but no accelerator is found, then device pinned memory won't be used.\n  super().__init__(loader)\n"
)
_LOADING = (
    "[WARNING:swift] Loading model from '/data/tiny' with trust_remote_code=True. This will execute custom Python code shipped "
    "in the model repository (e.g. configuration_*.py, modeling_*.py, tokenization_*.py). Only proceed if you trust the source "
    "of this model.\n[INFO:swift] Setting torch_dtype: torch.bfloat16\n"
    "[INFO:swift] model_kwargs: {'device_map': 'cuda:0', 'dtype': torch.bfloat16}\n"
)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _told(seconds: float) -> str:
    """As ms-swift writes it: 1h 2m 3s."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return " ".join(
        word
        for word, number in ((f"{hours}h", hours), (f"{minutes}m", hours or minutes), (f"{rest}s", 1))
        if number
    )


class TrainingWords:
    """Rank 0's lines, from the numbers of the steps and the seconds since the first one alone (and a seed)."""

    def __init__(self, total: int, output: str, seed: int = 1) -> None:
        self.total = total
        self.output = output
        self._chance = random.Random(seed)

    def start(self) -> str:
        """Once the model is there."""
        return (
            f"[INFO:swift] logging_path: {self.output}/logging.jsonl\n"
            + self.epoch(0)
            + f"\rTrain:   0%|          | 0/{self.total} [00:00<?, ?it/s]"
        )

    def epoch(self, number: int) -> str:
        return f"[INFO:swift] The training of Epoch {number} starts...\n{_WARNING}"

    def _bar(self, number: int, seconds: float) -> str:
        done = number / self.total
        filled = int(done * 10)
        rest = " ▏▎▍▌▋▊▉"[int(done * 80) % 8] if filled < 10 else ""
        rate = seconds / max(1, number)
        left = _clock(rate * (self.total - number))
        speed = f"{1 / rate:5.2f}it/s" if 0 < rate < 1 else f"{rate:5.2f}s/it"
        drawn = f"{int(done * 100):3d}%|{'█' * filled + rest:<10}| {number}/{self.total}"
        return f"\rTrain: {drawn} [{_clock(seconds)}<{left}, {speed}]"

    def _numbers(self, prefix: str, number: int, seconds: float) -> str:
        chance, rate = self._chance, seconds / max(1, number)
        margin = chance.gauss(0.3, 0.05)
        return (
            f"{{'{prefix}loss': {0.6 + chance.gauss(0, 0.02):.8f}, '{prefix}logps/chosen': {-62 + chance.gauss(0, 1):.8f}, "
            f"'{prefix}logps/rejected': {-63 + chance.gauss(0, 1):.8f}, '{prefix}rewards/chosen': {margin / 2:.8f}, "
            f"'{prefix}rewards/rejected': {-margin / 2:.8f}, '{prefix}rewards/accuracies': {chance.choice((0.5, 0.625, 0.75))}, "
            f"'{prefix}rewards/margins': {margin:.8f}, "
            + (
                ""
                if prefix
                else f"'grad_norm': {0.9 + chance.gauss(0, 0.05):.8f}, 'learning_rate': 9.657e-05, "
            )
            + f"'{prefix}load_balancing_loss': 0.0, 'iteration': '{number}/{self.total}', 'elapsed_time': '{_told(seconds)}', "
            f"'remaining_time': '{_told(rate * (self.total - number))}', 'memory(GiB)': 7.08, 'train_speed(s/it)': {rate:.6f}}}\n"
        )

    def step(self, number: int, seconds: float) -> str:
        """After step `number`, counted from 1."""
        bar = self._bar(number, seconds)
        return f"{bar}\r{' ' * 52}\r{self._numbers('', number, seconds)}{bar}"

    def evaluated(self, number: int, seconds: float, done: int, of: int, took: float) -> str:
        """The bar of an evaluation; its numbers with the last batch."""
        rate = f"{done / took:5.2f}it/s" if took else "?it/s"
        drawn = f"{100 * done // of:3d}%|{'█' * (10 * done // of):<10}| {done}/{of}"
        bar = f"\rEvaluate: {drawn} [{_clock(took)}<{_clock(0)}, {rate}]"
        if done < of:
            return f"\n{bar}\x1b[A"
        blank = f"\r{' ' * 52}\r\n\r{' ' * 55}\r\x1b[A"
        return f"\n{bar}\x1b[A{blank}{self._numbers('eval_', number, seconds)}{self._bar(number, seconds)}\n{bar}\x1b[A{bar}\n"

    def saved(self, number: int) -> str:
        """The end of a save."""
        folder = f"{self.output}/checkpoint-{number}"
        return (
            f"[INFO:swift] Successfully saved Megatron model weights in `{folder}`.\n"
            "\rSaving:   0%|          | 0/4 [00:00<?, ?it/s]\rSaving: 100%|██████████| 4/4 [00:00<00:00, 20.74it/s]\n"
            f"{_LOADING}[INFO:swift] Successfully saved `safetensors` model weights in `{folder}`.\n"
        )

    def saving(self, number: int) -> str:
        """Its beginning, as megatron-core says it (recorded with ms-swift 3.8.3:
        tests/captures/logs/megatron_dpo_3.8.3.log)."""
        return f"saving checkpoint at iteration {number:7d} to {self.output}/checkpoint-{number} in torch_dist format\n"


class NcclWords:
    """What NCCL 2.28.9 says in a rank: its start, then communicators that are split off and destroyed, at so
    many addresses: what was freed is taken again."""

    def __init__(self, rank: int, pid: int, host: str, *, addresses: int = 512, attempt: int = 0) -> None:
        self._addresses = addresses
        text = (_NCCL / f"rank{rank % 2}.log").read_text()
        at = text.index("ncclCommSplit")
        at = text.rindex("Connected all rings", 0, at)
        first, _, later = text[at:].partition("\n")
        self._start = text[:at] + first + "\n"
        self._split = later[: later.index("Destroy COMPLETE") + len("Destroy COMPLETE\n")]
        self._who = (str(pid), str(rank), host)
        self._pair = (attempt << 8) + rank // 2

    def _as_ours(self, text: str, number: int) -> str:
        pid, rank, host = self._who
        theirs = re.search(r"^\S+?:(\d+):", text)
        assert theirs is not None
        text = re.sub(
            rf"^\S+?:{theirs[1]}:(\d+) \[\d\]",
            lambda line: f"{host}:{pid}:{pid if line[1] == theirs[1] else line[1]} [{rank}]",
            text,
            flags=re.MULTILINE,
        )
        text = re.sub(
            r"commId 0x[0-9a-f]+", f"commId 0x{0xE0B44F04 + self._pair & 0xFFFFFFFF:x}{number:08x}", text
        )
        text = re.sub(r"busId [67]0", f"busId {0x60 + 0x10 * int(rank):x}", text)  # each has a GPU of its own
        text = re.sub(r"(cuda|nvml)Dev [01]", rf"\g<1>Dev {rank}", text)
        at = number % self._addresses
        return re.sub(r"comm 0x([0-9a-f]+)", lambda found: f"comm 0x{int(found[1], 16) + (at << 12):x}", text)

    def start(self) -> list[str]:
        return self._as_ours(self._start, 0).splitlines(keepends=True)

    def split(self, number: int) -> list[str]:
        """A communicator of its own, from beginning to end: some twenty lines."""
        return self._as_ours(self._split, number).splitlines(keepends=True)
