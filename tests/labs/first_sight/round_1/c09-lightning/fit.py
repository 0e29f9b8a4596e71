import logging
import os
import tempfile
import time

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class ArchiveIO(TorchCheckpointIO):
    """Write locally, then copy to the archive at the rate it takes (0.6 MB/s is our share)."""

    rate = 0.6 * 2**20
    chunk = 256 * 2**10

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        with tempfile.TemporaryDirectory() as tmp:
            local = os.path.join(tmp, "ckpt")
            super().save_checkpoint(checkpoint, local)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(local, "rb") as src, open(path, "wb") as dst:
                while block := src.read(self.chunk):
                    dst.write(block)
                    dst.flush()
                    os.fsync(dst.fileno())
                    time.sleep(self.chunk / self.rate)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(60000, 64)
        self.head = nn.Linear(64, 2)

    def training_step(self, batch, i):
        x, y = batch
        time.sleep(0.1)
        return nn.functional.cross_entropy(self.head(self.table(x)), y)

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=0.05)


class EveryFifty(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (batch_idx + 1) % 50 == 0 and trainer.is_global_zero:
            print(f"batch {batch_idx + 1} loss {outputs['loss'].item():.4f}", flush=True)


def main():
    torch.set_num_threads(1)
    L.seed_everything(9, verbose=False)
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 60000, (3600, 12), generator=g)
    y = (x.sum(1) % 2)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    with_ckpt = L.pytorch.callbacks.ModelCheckpoint(dirpath="/tmp/fs-c09-archive", every_n_train_steps=90,
                                                    save_top_k=1, filename="net-{step}")
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=150, max_epochs=-1,
                        logger=False, enable_progress_bar=False, enable_model_summary=False,
                        plugins=[ArchiveIO()], callbacks=[with_ckpt, EveryFifty()])
    trainer.fit(Net(), loader)
    print("fit done", flush=True)


if __name__ == "__main__":
    main()
