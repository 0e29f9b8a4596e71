import random
import time

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

WORDS = ("the a of to and in that is was for with as on by at from an be this are or which one had "
         "not but what all were when we there can more if no out so up into than them only").split()


def corpus(n=5200):
    r = random.Random(17)
    for _ in range(n):
        yield " ".join(r.choice(WORDS) + str(r.randrange(30)) for _ in range(40))


def build(max_len=48):
    """Train the tokenizer and encode the corpus, in memory."""
    texts = list(corpus())
    tok = Tokenizer(models.BPE(unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=800, special_tokens=["[UNK]", "[PAD]"],
                                                       show_progress=False))
    tok.enable_truncation(max_len)
    tok.enable_padding(length=max_len, pad_id=1)

    def encode(row):
        time.sleep(0.014)  # language filter and near-duplicate look-up of the real pipeline
        return {"ids": tok.encode(row["text"]).ids}

    data = Dataset.from_dict({"text": texts}).map(encode, remove_columns=["text"],
                                                  keep_in_memory=True)
    return data["ids"], tok.get_vocab_size()
