import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from export_callback import ExportCallback


class Sequences(Dataset):
    """Arithmetic progressions modulo the vocabulary."""

    def __init__(self, n=20000, length=48, vocab=256):
        self.n, self.length, self.vocab = n, length, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = (torch.arange(self.length) * (i % 17 + 1) + i) % self.vocab
        return {"input_ids": ids, "labels": ids}


def main():
    set_seed(42)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=96, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        output_dir="checkpoints", max_steps=2000, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=10,
        save_steps=40, save_total_limit=2, use_cpu=True, ddp_backend="gloo", report_to="none",
        ddp_find_unused_parameters=False)
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Sequences(),
                      callbacks=[ExportCallback(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))])
    trainer.train()


if __name__ == "__main__":
    main()
