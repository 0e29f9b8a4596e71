import time

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Milestones(Callback):
    """Keeps the weights at some steps, apart from the usual checkpoints."""

    def __init__(self, steps, folder):
        self.steps, self.folder = set(steps), folder

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and trainer.global_step in self.steps:
            trainer.save_checkpoint(f"{self.folder}/milestone-{trainer.global_step}.ckpt")


class Console(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero and trainer.global_step % 10 == 0:
            print(f"epoch {trainer.current_epoch} step {trainer.global_step} loss {float(outputs['loss']):.4f}", flush=True)


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 1))

    def training_step(self, batch, _):
        x, y = batch
        time.sleep(0.15)
        return nn.functional.mse_loss(self.net(x).squeeze(-1), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def main():
    L.seed_everything(3)
    x = torch.randn(16 * 2 * 400, 32)
    data = TensorDataset(x, x[:, :4].sum(1).sin())
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=8,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[Milestones([90, 1200, 3000], "kept"), Console()],
    )
    trainer.fit(Regressor(), DataLoader(data, batch_size=16, shuffle=True))
    print("finished", trainer.global_step)


if __name__ == "__main__":
    main()
