import http.client
import json
import time


class Index:
    def __init__(self, address):
        self.conn = http.client.HTTPConnection(address)

    def _send(self, method, path, body=None):
        data = json.dumps(body) if body is not None else None
        self.conn.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        return json.loads(self.conn.getresponse().read())

    def items(self, tries=60):
        for _ in range(tries):
            try:
                return self._send("GET", "/items")["items"]
            except ConnectionRefusedError:
                self.conn.close()
                time.sleep(1)
        raise TimeoutError("no index")

    def nearest(self, vectors, k):
        return self._send("POST", "/nearest", {"vectors": vectors, "k": k})["ids"]
