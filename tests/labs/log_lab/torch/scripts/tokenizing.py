"""Tokenizes, then starts DataLoader workers: the tokenizers library warns of the fork. A Trainer-like end."""

import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader


class Texts:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return len(self.tokenizer.encode(f"sample {index}").ids)


dist.init_process_group("gloo")
tokenizer = Tokenizer(models.WordLevel({"sample": 0, "[UNK]": 1}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.encode_batch(["sample one", "sample two"] * 64)
for number, batch in enumerate(DataLoader(Texts(tokenizer), batch_size=8, num_workers=2)):
    if dist.get_rank() == 0:
        print(f"step {number}: {batch.sum().item()} tokens", flush=True)
dist.barrier()
dist.destroy_process_group()
