import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm
import logging
import time

from data import packed_dataset

logging.basicConfig(format="[%(asctime)s|%(levelname)s] %(message)s", level=logging.INFO)
log = get_logger(__name__)
STAGES = [(16, 1), (32, 1), (64, 2), (128, 4)]


class TinyLM(nn.Module):
    def __init__(self, vocab=200, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def loader_for(accelerator, length):
    with accelerator.main_process_first():
        rows = packed_dataset(length)
    return accelerator.prepare(DataLoader(TensorDataset(rows), batch_size=16, shuffle=True))


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for length, epochs in STAGES:
        loader = loader_for(accelerator, length)
        log.info("stage: sequence length %d, %d steps an epoch", length, len(loader))
        for epoch in range(epochs):
            bar = tqdm(loader, desc=f"len {length} epoch {epoch}", mininterval=2,
                       disable=not accelerator.is_local_main_process)
            for (x,) in bar:
                logits = model(x[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(0.25)
                bar.set_postfix(loss=f"{loss.item():.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
