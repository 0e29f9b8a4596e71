from dataclasses import dataclass

import torch
import torch.nn.functional as F

EOS = 1


@dataclass
class GenerationConfig:
    max_new_tokens: int = 24
    min_new_tokens: int = 24
    temperature: float = 1.0


@torch.no_grad()
def generate(model, prompts, cfg):
    ids = prompts
    done = torch.zeros(len(ids), dtype=torch.bool)
    for t in range(cfg.max_new_tokens):
        logits = model(ids)[:, -1] / cfg.temperature
        if t < cfg.min_new_tokens:
            logits[:, EOS] = float("-inf")
        nxt = torch.multinomial(F.softmax(logits, -1), 1).squeeze(1)
        nxt = torch.where(done, torch.zeros_like(nxt), nxt)
        done |= nxt == EOS
        ids = torch.cat([ids, nxt[:, None]], 1)
        if done.all():
            break
    return ids
