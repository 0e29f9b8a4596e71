"""Shards -> samples -> batches, split over ranks and workers."""
import gzip
import logging
import tarfile
import zlib

import torch
from torch.utils.data import IterableDataset, get_worker_info

log = logging.getLogger("pipeline")


def log_and_continue(exn, url):
    log.info("handling %r in %s", exn, url)
    return True


def complete(sample, url):
    missing = {"txt", "cls"} - sample.keys()
    if missing:
        log.info("skipping %s in %s, no %s", sample["key"], url, ", ".join(missing))
    return not missing


def tar_samples(urls, handler):
    for url in urls:
        try:
            with tarfile.open(url, "r|gz") as stream:
                sample = {}
                for member in stream:
                    key, ext = member.name.rsplit(".", 1)
                    if sample and sample["key"] != key:
                        if complete(sample, url):
                            yield sample
                        sample = {}
                    sample["key"] = key
                    sample[ext] = stream.extractfile(member).read()
                if sample and complete(sample, url):
                    yield sample
        except (OSError, EOFError, tarfile.TarError, zlib.error) as exn:
            if not handler(exn, url):
                raise


class Shards(IterableDataset):
    def __init__(self, urls, rank, world, length=64):
        self.urls, self.rank, self.world, self.length = urls, rank, world, length

    def __iter__(self):
        info = get_worker_info()
        mine = self.urls[self.rank::self.world]
        if info:
            mine = mine[info.id::info.num_workers]
        for s in tar_samples(mine, log_and_continue):
            raw = s["txt"][:self.length * 4]
            x = torch.zeros(self.length * 4, dtype=torch.long)
            x[:len(raw)] = torch.tensor(list(raw))
            yield x, int(s["cls"])
