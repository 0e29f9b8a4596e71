import os
from pathlib import Path

from filelock import SoftFileLock
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def corpus():
    here = Path(__file__).resolve().parent
    for path in sorted(here.glob("*.py")):
        yield from path.read_text().splitlines()


def train_bpe(path, size):
    tok = Tokenizer(models.BPE(unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=size, special_tokens=["[UNK]", "[PAD]"],
                                                          show_progress=False))
    tok.save(path + ".part")
    os.replace(path + ".part", path)


def get_tokenizer(path, size=2000):
    """Train the vocabulary once; everybody else finds it in the cache (which several nodes share)."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with SoftFileLock(path + ".lock"):
        if not os.path.exists(path):
            train_bpe(path, size)
    return Tokenizer.from_file(path)
