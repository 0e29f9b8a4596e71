"""Language model on short notes. Batches are cut from notes of about the same length."""
import os
import random

os.environ["TOKENIZERS_PARALLELISM"] = "true"

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

VOCAB = "tokenizer.json"
WORDS = [a + b for a in "ka lo mi ru se tan vor wel xi yu".split() for b in "ba de fin go hul jam ner po".split()]


def notes(n=6000, seed=5):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(6, 40))) for _ in range(n)]


class Notes(Dataset):
    def __init__(self, texts, order):
        self.texts, self.order = texts, order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, i):
        return self.texts[self.order[i]]


class Collate:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, texts):
        rows = [e.ids[:32] for e in self.tokenizer.encode_batch(texts)]
        width = max(len(r) for r in rows)
        return torch.tensor([r + [0] * (width - len(r)) for r in rows])


class Model(nn.Module):
    def __init__(self, vocab, width=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    texts = notes()
    order = [list(range(len(texts)))]
    if rank == 0:
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<pad>", "<unk>"]))
        tokenizer.save(VOCAB)
        lengths = [len(e.ids) for e in tokenizer.encode_batch(texts)]
        order = [sorted(order[0], key=lambda i: lengths[i])]
    dist.broadcast_object_list(order, src=0)
    if rank != 0:
        tokenizer = Tokenizer.from_file(VOCAB)

    data = Notes(texts, order[0][rank::world])
    loader = DataLoader(data, batch_size=16, num_workers=1, collate_fn=Collate(tokenizer))
    model = DistributedDataParallel(Model(tokenizer.get_vocab_size()))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(20):
        bar = tqdm(loader, desc=f"epoch {epoch}", disable=rank != 0)
        for ids in bar:
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            opt.zero_grad()
            loss.backward()
            opt.step()
            bar.set_postfix(loss=f"{loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
