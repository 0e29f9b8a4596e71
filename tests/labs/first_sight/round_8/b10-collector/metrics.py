import json
import os
import socket

import torch


class Client:
    def __init__(self):
        host, port = os.environ["METRICS_ADDR"].split(":")
        self.sock = socket.create_connection((host, int(port)))

    def histograms(self, step, model, bins=200):
        body = {"step": step}
        for name, p in model.named_parameters():
            body[name] = {"grad": torch.histc(p.grad, bins).tolist(),
                          "sample": p.detach().flatten()[:4000].tolist()}
        self.sock.sendall(json.dumps(body).encode() + b"\n")
