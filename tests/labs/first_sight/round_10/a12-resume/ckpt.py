"""Sharded checkpoints: every rank keeps its own files, runs/NAME/rank_R/step_N.pt, the newest KEEP of them."""
import glob
import logging
import os
import re

import torch

log = logging.getLogger(__name__)
KEEP = 2


def folder(run, rank):
    return os.path.join("runs", run, f"rank_{rank}")


def save(run, rank, state):
    where = folder(run, rank)
    os.makedirs(where, exist_ok=True)
    path = os.path.join(where, f"step_{state['step']}.pt")
    torch.save(state, path + "~")
    os.replace(path + "~", path)
    for old in listing(run, rank)[KEEP:]:
        os.remove(old)


def listing(run, rank):
    files = glob.glob(os.path.join(folder(run, rank), "step_*.pt"))
    return sorted(files, key=lambda f: -int(re.search(r"step_(\d+)", f).group(1)))


def latest(run, rank):
    for path in listing(run, rank):
        try:
            state = torch.load(path, weights_only=True)
        except Exception as e:
            log.debug("%s: %s", path, e)
            continue
        log.info("resuming from %s", os.path.basename(path))
        return state
    return None
