"""Fine-tune a small decoder on the support-ticket corpus with the HF Trainer."""
import multiprocessing as mp
import os
import random

import torch
from torch.utils.data import Dataset
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
SEQ = 32


class Tickets(Dataset):
    """Short synthetic sequences: a run with a period of its own."""

    def __init__(self, n, seed):
        r = random.Random(seed)
        self.rows = []
        for _ in range(n):
            period = r.randint(2, 6)
            unit = [r.randint(4, 95) for _ in range(period)]
            ids = (unit * (SEQ // period + 1))[:SEQ]
            self.rows.append(torch.tensor(ids))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def write_rows(rows, path):
    """Runs beside the training, so that a slow disk does not hold it up."""
    with open(path, "w", buffering=1) as f:
        f.write("step,loss,lr\n")
        while True:
            step, logs = rows.get()
            f.write(f"{step},{logs['loss']},{logs['learning_rate']}\n")


class CsvCallback(TrainerCallback):
    def __init__(self, path):
        self.path, self.rows = path, None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            ctx = mp.get_context("fork")
            self.rows = ctx.Queue(maxsize=16)
            ctx.Process(target=write_rows, args=(self.rows, self.path), daemon=True).start()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.rows is not None and logs:
            self.rows.put((state.global_step, dict(logs)))


def main():
    set_seed(11)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=SEQ, n_embd=48, n_layer=2,
                                       n_head=2, bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        output_dir=os.environ.get("OUTPUT_DIR", "/tmp/fs-c01-out"), use_cpu=True, ddp_backend="gloo",
        per_device_train_batch_size=8, per_device_eval_batch_size=16, max_steps=4000,
        learning_rate=1e-3, logging_steps=10, eval_strategy="steps", eval_steps=100,
        save_strategy="no", report_to=[], ddp_find_unused_parameters=False)
    trainer = Trainer(model=model, args=args, train_dataset=Tickets(6000, 5),
                      eval_dataset=Tickets(96, 6), callbacks=[CsvCallback("/tmp/fs-c01-loss.csv")])
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
