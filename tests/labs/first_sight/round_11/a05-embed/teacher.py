import http.client
import json

import torch


class Teacher:
    def __init__(self, address, reuse=False):
        self.address = address
        self.reuse = reuse
        self.conn = None

    def __call__(self, ids):
        conn = self.conn or http.client.HTTPConnection(self.address)
        conn.request("POST", "/embed", json.dumps(ids.tolist()), {"Content-Type": "application/json"})
        rows = torch.tensor(json.loads(conn.getresponse().read()))
        if self.reuse:
            self.conn = conn
        else:
            conn.close()
        return rows
