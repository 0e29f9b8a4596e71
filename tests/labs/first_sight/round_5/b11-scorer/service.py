"""Reward model service. Requests are scored in batches, which is several times faster than one by one."""
import queue
import socket
import sys
import threading
import time
from concurrent.futures import Future

import torch
import torch.nn as nn
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

torch.set_num_threads(1)
app = FastAPI()
BATCH = 8
requests_in: "queue.Queue" = queue.Queue()
torch.manual_seed(3)
reward_model = nn.Sequential(nn.EmbeddingBag(512, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).eval()


class Item(BaseModel):
    tokens: list[int]


def batcher():
    while True:
        batch = [requests_in.get() for _ in range(BATCH)]
        ids = torch.tensor([t for tokens, _ in batch for t in tokens])
        offsets = torch.tensor([0] + [len(tokens) for tokens, _ in batch][:-1]).cumsum(0)
        with torch.no_grad():
            hidden = reward_model[0](ids, offsets)
            scores = reward_model[1:](hidden).squeeze(1).tolist()
        time.sleep(0.05)
        for (_, future), score in zip(batch, scores):
            future.set_result(score)


@app.post("/score")
def score(item: Item):
    future = Future()
    requests_in.put((item.tokens, future))
    return {"reward": future.result()}


@app.get("/health")
async def health():
    return {"waiting": requests_in.qsize()}


if __name__ == "__main__":
    threading.Thread(target=batcher, daemon=True).start()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    with open(sys.argv[1], "w") as f:
        f.write(f"http://127.0.0.1:{sock.getsockname()[1]}\n")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[sock])
