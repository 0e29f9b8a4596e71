"""Actors send answers to the reward rank and get one number per prompt back."""
import torch
import torch.distributed as dist


def send_answer(tokens, dst):
    dist.send(torch.tensor([len(tokens)]), dst)
    dist.send(torch.tensor(tokens), dst)


def recv_answer(src):
    n = torch.zeros(1, dtype=torch.long)
    dist.recv(n, src)
    t = torch.zeros(int(n), dtype=torch.long)
    dist.recv(t, src)
    return t.tolist()


def ask(answers, dst):
    for tokens in answers:
        if tokens:
            send_answer(tokens, dst)
    scores = torch.zeros(len(answers))
    dist.recv(scores, dst)
    return scores


def serve(actors, n, score):
    for src in actors:
        answers = [recv_answer(src) for _ in range(n)]
        dist.send(torch.tensor([score(a) for a in answers]), src)
