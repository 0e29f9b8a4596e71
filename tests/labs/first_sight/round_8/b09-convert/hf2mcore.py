"""Rank 0 reads the full model and deals it out, each tensor to the stage that owns it."""
import time

import torch
import torch.distributed as dist


def layer_names(i):
    return [f"decoder.layers.{i}.{n}.weight" for n in ("qkv", "proj", "fc1", "fc2", "norm")]


def owned_names(cfg, stage, stages):
    per = cfg["num_layers"] // stages
    names = []
    if stage == 0:
        names.append("embedding.word_embeddings.weight")
    for i in range(stage * per, (stage + 1) * per):
        names += layer_names(i)
    if stage == stages - 1:
        names.append("decoder.final_norm.weight")
        if not cfg["tie_word_embeddings"]:
            names.append("output_layer.weight")
    return names


def shape_of(cfg, name):
    h, v = cfg["hidden_size"], cfg["vocab_size"]
    for key, shape in (("norm", (h,)), ("qkv", (3 * h, h)), ("fc1", (4 * h, h)), ("fc2", (h, 4 * h)),
                       ("proj", (h, h))):
        if key in name:
            return shape
    return (v, h)


def read_tensor(cfg, name):
    gen = torch.Generator().manual_seed(len(name) * 131 + sum(map(ord, name)))
    time.sleep(0.04)
    return torch.randn(shape_of(cfg, name), generator=gen) * 0.02


def deal(cfg, tell):
    rank, stages = dist.get_rank(), dist.get_world_size()
    mine = {}
    if rank == 0:
        for stage in range(stages):
            for name in owned_names(cfg, stage, stages):
                tensor = read_tensor(cfg, name)
                if stage == 0:
                    mine[name] = tensor
                else:
                    dist.send(tensor, stage)
            tell(f"stage {stage}: {len(owned_names(cfg, stage, stages))} tensors converted")
    else:
        for name in owned_names(cfg, rank, stages):
            mine[name] = torch.empty(shape_of(cfg, name))
            dist.recv(mine[name], 0)
    return mine
