"""transformers' Trainer on a tiny model: its bars, its warnings."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
)
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(32)]
arguments = TrainingArguments(
    "output",
    max_steps=8,
    logging_steps=2,
    save_steps=4,
    per_device_train_batch_size=2,
    report_to=[],
    gradient_checkpointing=True,
    use_cpu=True,
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=data).train()
