import http.client
import json


class RewardModel:
    """Keeps its connection: a new one for each batch costs too much."""

    def __init__(self, port):
        self.conn = http.client.HTTPConnection("127.0.0.1", port)

    def __call__(self, texts):
        self.conn.request("POST", "/score", json.dumps({"texts": texts}), {"Content-Type": "application/json"})
        return json.loads(self.conn.getresponse().read())
