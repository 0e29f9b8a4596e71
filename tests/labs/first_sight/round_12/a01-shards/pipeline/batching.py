import torch


def collate(records, size, pad=0):
    batch = []
    for r in records:
        batch.append(r)
        if len(batch) == size:
            yield _pack(batch, pad)
            batch = []


def _pack(batch, pad):
    width = max(len(ids) for ids, _ in batch)
    x = torch.full((len(batch), width), pad, dtype=torch.long)
    for i, (ids, _) in enumerate(batch):
        x[i, : len(ids)] = torch.tensor(ids)
    return x, torch.tensor([y for _, y in batch])
