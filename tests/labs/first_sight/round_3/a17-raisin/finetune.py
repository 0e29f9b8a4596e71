import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 300, (n, 16), generator=g)
    return TensorDataset(x, (x < 40).sum(1).clamp(max=4))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(300, 48)
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        return self.head(self.bag(x))


@torch.no_grad()
def accuracy(accelerator, model, loader):
    model.eval()
    good = total = 0
    for x, y in loader:
        pred = model(x).argmax(-1)
        pred, y = accelerator.gather_for_metrics((pred, y))
        good += (pred == y).sum().item()
        total += len(y)
    model.train()
    return good / total


def main():
    accelerator = Accelerator(cpu=True)
    train, test = DataLoader(make(9600, 0), batch_size=8, shuffle=True), DataLoader(make(320, 1), batch_size=16)
    model = Tagger()
    model, opt, train, test = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 2e-3), train, test)
    best = 0.0
    step = 0
    for epoch in range(3):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            step += 1
            time.sleep(0.25)
            if step % 20 == 0:
                accelerator.print(f"{{'loss': {loss.item():.4f}, 'step': {step}, 'epoch': {epoch + step / 1800:.3f}}}")
            if step % 100 == 0 and accelerator.is_local_main_process:
                acc = accuracy(accelerator, model, test)
                print(f"{{'eval_accuracy': {acc:.4f}, 'step': {step}}}", flush=True)
                if acc > best:
                    best = acc
                    torch.save(accelerator.unwrap_model(model).state_dict(), "best.pt")


if __name__ == "__main__":
    main()
