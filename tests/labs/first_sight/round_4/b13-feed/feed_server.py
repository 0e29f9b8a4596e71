"""Feed: hands out rows of the shards to whoever asks, each row once."""
import argparse
import itertools
import json
import logging
import threading
from concurrent import futures

import grpc

logging.basicConfig(format="feed | %(levelname)s | %(message)s", level=logging.INFO)


class Feed(grpc.GenericRpcHandler):
    def __init__(self, shards, rows, drained):
        self.rows = itertools.product(range(shards), range(rows))
        self.left = shards * rows
        self.guard, self.drained = threading.Lock(), drained

    def service(self, details):
        if details.method == "/feed.Feed/Next":
            return grpc.unary_unary_rpc_method_handler(self.next)

    def next(self, request, context):
        with self.guard:
            shard, row = next(self.rows)
            self.left -= 1
            if self.left == 0:
                self.drained.set()
        return json.dumps({"shard": shard, "row": row, "seed": shard * 1000 + row}).encode()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", type=int, required=True)
    ap.add_argument("--rows-per-shard", type=int, required=True)
    ap.add_argument("--write-endpoint", required=True)
    a = ap.parse_args()
    drained = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Feed(a.shards, a.rows_per_shard, drained),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open(a.write_endpoint, "w") as f:
        f.write(f"127.0.0.1:{port}")
    logging.info("serving %d shards", a.shards)
    drained.wait()
    server.stop(grace=2).wait()


if __name__ == "__main__":
    main()
