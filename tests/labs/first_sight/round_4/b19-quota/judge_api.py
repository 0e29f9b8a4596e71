"""Judge model behind a gateway with a quota per window."""
import socket
import time

import uvicorn
from fastapi import FastAPI, Response

app = FastAPI()
QUOTA, WINDOW = 150, 95.0
state = {"start": None, "used": 0}


@app.post("/judge")
async def judge(body: dict, response: Response):
    now = time.monotonic()
    if state["start"] is None or now - state["start"] >= WINDOW:
        state.update(start=now, used=0)
    state["used"] += 1
    if state["used"] > QUOTA:
        response.status_code = 429
        response.headers["Retry-After"] = str(int(state["start"] + WINDOW - now) + 1)
        return {"error": "quota exceeded"}
    return {"score": (len(body["text"]) % 11) / 10}


def run(q):
    sock = socket.create_server(("127.0.0.1", 0))
    q.put(sock.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[sock])
