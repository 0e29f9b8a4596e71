import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Patterns(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.rows = (torch.arange(24)[None] * torch.randint(1, 9, (n, 1), generator=gen)
                     + torch.randint(0, 64, (n, 1), generator=gen)) % 64

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class KeepBest(TrainerCallback):
    """Looks at the model every so many steps and keeps the best one."""

    def __init__(self, every):
        self.every, self.best, self.trainer = every, float("inf"), None

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and state.global_step % self.every == 0:
            loss = self.trainer.evaluate()["eval_loss"]
            if loss < self.best:
                self.best = loss
                self.trainer.model.save_pretrained("best")


def main():
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    keep = KeepBest(every=35)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir="out", per_device_train_batch_size=8, per_device_eval_batch_size=16,
                               max_steps=300, logging_steps=10, learning_rate=2e-3, save_strategy="no",
                               report_to=[], use_cpu=True, ddp_backend="gloo", ddp_find_unused_parameters=False,
                               average_tokens_across_devices=False),
        train_dataset=Patterns(4000, 1), eval_dataset=Patterns(200, 2), callbacks=[keep])
    keep.trainer = trainer
    trainer.train()
    if trainer.is_world_process_zero():
        print("best", keep.best)


if __name__ == "__main__":
    main()
