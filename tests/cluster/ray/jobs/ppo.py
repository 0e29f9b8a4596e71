"""The shape of a PPO job: a driver that calls a rollout actor and two trainer actors (gloo between them) in turn, and a
reward service on HTTP that the rollout asks. FAULT=reward: from its 6th request on the service does not answer.
FAULT=slow, which is none: once the rollout computes for 100 s."""

import http.server
import json
import math
import os
import subprocess
import sys
import time
import urllib.request

import ray


class Reward(http.server.BaseHTTPRequestHandler):
    seen = 0

    def do_POST(self):
        answers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Reward.seen += 1
        if os.environ.get("FAULT") == "reward" and Reward.seen > 5:
            self.judge_by_hand()
        body = json.dumps([1.0 for _ in answers]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def judge_by_hand(self):
        while True:
            time.sleep(3600)

    def log_message(self, *args):
        pass


def serve_rewards():
    server = http.server.HTTPServer(("127.0.0.1", 0), Reward)
    print(server.server_port, flush=True)
    server.serve_forever()


@ray.remote(num_cpus=1)
class Rollout:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/reward"

    def generate(self, step):
        until = time.monotonic() + (100 if os.environ.get("FAULT") == "slow" and step == 4 else 0.2)
        while time.monotonic() < until:
            math.sqrt(step)
        return self.score([f"answer {step}.{number}" for number in range(4)])

    def score(self, answers):
        request = urllib.request.Request(self.url, json.dumps(answers).encode())
        with urllib.request.urlopen(request) as response:
            return json.load(response)


@ray.remote(num_cpus=1)
class Trainer:
    def address(self):
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def setup(self, rank, world, address):
        import torch.distributed as dist

        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)

    def update(self, rewards):
        import torch
        import torch.distributed as dist

        for _ in range(4):
            time.sleep(0.05)
            dist.all_reduce(torch.tensor(rewards))
        return sum(rewards)


def main():
    steps = int(os.environ.get("STEPS", "5000"))
    here = [sys.executable, __file__, "reward"]
    with subprocess.Popen(here, stdout=subprocess.PIPE, text=True) as service:
        port = int(service.stdout.readline())
        if not os.environ.get("RAY_ADDRESS"):
            ray.init(num_cpus=4, include_dashboard=False, object_store_memory=120 * 2**20)
        rollout = Rollout.remote(port)
        trainers = [Trainer.remote() for _ in range(2)]
        address = ray.get(trainers[0].address.remote())
        ray.get([one.setup.remote(rank, 2, address) for rank, one in enumerate(trainers)])
        for step in range(steps):
            rewards = ray.get(rollout.generate.remote(step))
            score = ray.get([one.update.remote(rewards) for one in trainers])[0]
            print(f"step {step} reward {score:.3f}", flush=True)
        service.terminate()
    print("done", flush=True)


if __name__ == "__main__":
    serve_rewards() if sys.argv[1:] == ["reward"] else main()
