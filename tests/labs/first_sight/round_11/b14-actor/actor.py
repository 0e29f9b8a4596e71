"""Generation side (the last rank): serves `generate` and `update_weights` on a socket, receives weights by broadcast."""
import logging
import os
from multiprocessing.connection import Listener

import torch
import torch.distributed as dist

from common import VOCAB, make_policy

os.makedirs("log", exist_ok=True)
logging.basicConfig(filename="log/actor.log", level=logging.INFO)
log = logging.getLogger("actor")


@torch.no_grad()
def generate(policy, n, length=24):
    x = torch.randint(0, VOCAB, (n, 1))
    for _ in range(length):
        x = torch.cat([x, torch.multinomial(policy(x[:, -1]).softmax(-1), 1)], 1)
    return x


def update_weights(policy, metas, group):
    state = policy.state_dict()
    for name, shape in metas:
        if name not in state or tuple(state[name].shape) != tuple(shape):
            raise KeyError(f"no parameter {name!r} of shape {tuple(shape)}")
    for name, shape in metas:
        dist.broadcast(state[name], src=0, group=group)


def serve(address, group):
    policy = make_policy()
    with Listener(address) as listener, listener.accept() as conn:
        while True:
            op, arg = conn.recv()
            if op == "stop":
                return
            try:
                if op == "generate":
                    conn.send(("ok", generate(policy, arg).tolist()))
                elif op == "update_weights":
                    update_weights(policy, arg, group)
                    conn.send(("ok", None))
            except Exception as e:
                log.exception("%s", op)
                conn.send(("error", repr(e)))
