"""Starts the tool server and the two trainer ranks of one node."""
import multiprocessing as mp
import socket

import agent_trainer
import tool_server


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    rendezvous, q = port(), ctx.Queue()
    server = ctx.Process(target=tool_server.serve, args=(q,), name="tool-server", daemon=True)
    server.start()
    tools = q.get()
    ranks = [ctx.Process(target=agent_trainer.run, args=(r, 2, rendezvous, tools), name=f"trainer-{r}")
             for r in range(2)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    raise SystemExit(max(abs(p.exitcode) for p in ranks))
