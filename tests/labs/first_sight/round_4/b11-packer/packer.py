"""Tokenise and pack documents in the background."""
import time
from concurrent.futures import ThreadPoolExecutor

LONG = 4000        # characters


class Packer:
    def __init__(self, threads=2):
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="pack")

    def encode_piece(self, text):
        time.sleep(len(text) / 60000)           # the tokenizer releases the GIL
        return [ord(c) % 250 + 2 for c in text]

    def encode_document(self, text):
        if len(text) <= LONG:
            return self.encode_piece(text)
        pieces = [text[i:i + LONG] for i in range(0, len(text), LONG)]
        futures = [self.pool.submit(self.encode_piece, p) for p in pieces]
        ids = []
        for f in futures:
            ids.extend(f.result())
        return ids

    def encode_batch(self, docs):
        return [self.pool.submit(self.encode_document, d) for d in docs]
