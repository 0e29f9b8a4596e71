import json
import logging
import time
import urllib.error
import urllib.request

log = logging.getLogger("broker")


class Broker:
    def __init__(self, url, client):
        self.url = url
        self.client = client

    def _post(self, path, **body):
        data = json.dumps({"client": self.client, **body}).encode()
        wait = 0.5
        while True:
            try:
                with urllib.request.urlopen(self.url + path, data=data, timeout=30) as r:
                    return json.load(r)
            except urllib.error.HTTPError as e:
                wait = float(e.headers.get("Retry-After") or wait)
                log.debug("broker says %s, again in %.1f s", e.code, wait)
            except OSError as e:
                wait = min(wait * 2, 10)
                log.debug("%s, again in %.1f s", e, wait)
            time.sleep(wait)

    def acquire(self):
        return self._post("/acquire")["block"]

    def release(self, block):
        self._post("/release", block=block)
