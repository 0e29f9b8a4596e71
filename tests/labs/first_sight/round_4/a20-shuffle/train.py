import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from shards import Shards

EPOCHS = [
    (["2024-a", "2024-b"], ["2024-c", "2024-d"]),
    (["2023-a", "2023-b"], ["2019-a", "2023-c"]),
    (["2022-a", "2022-b"], ["2022-c", "2022-d"]),
]
RECORDS, BATCH, BUFFER = 2000, 50, 1900


def main():
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, opt = accelerator.prepare(model, opt)
    for epoch, names in enumerate(EPOCHS):
        loader = DataLoader(Shards(names[accelerator.process_index], RECORDS, BUFFER), batch_size=BATCH, num_workers=1)
        bar = tqdm(loader, total=2 * RECORDS // BATCH, desc=f"epoch {epoch + 1}/{len(EPOCHS)}",
                   disable=not accelerator.is_local_main_process)
        for x, y in bar:
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            time.sleep(0.1)
        mean = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"epoch {epoch + 1} mse {mean:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
