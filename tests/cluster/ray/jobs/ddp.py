"""Data-parallel training in Ray actors, gloo between them, as Ray Train does it. FAULT=skip: one actor has less data and
leaves out the last collectives. FAULT=kill: the driver ends one actor by ray.kill. Runs until it is stopped or STEPS are done."""

import os

import ray

SHORT = 1  # the rank that has no more data


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

    def fit(self, steps, fault):
        import time

        import torch
        import torch.distributed as dist

        gradient = torch.ones(1000)
        for step in range(steps):
            time.sleep(0.1)  # the forward pass
            if fault == "skip" and dist.get_rank() == SHORT and step == 30:
                return  # its share of the data is one batch shorter
            dist.all_reduce(gradient)
            if dist.get_rank() == 0:
                print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)


def main():
    steps, fault = int(os.environ.get("STEPS", "5000")), os.environ.get("FAULT", "")
    if not os.environ.get("RAY_ADDRESS"):
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=120 * 2**20)
    trainers = [Trainer.remote() for _ in range(2)]
    address = ray.get(trainers[0].address.remote())
    ray.get([one.setup.remote(rank, 2, address) for rank, one in enumerate(trainers)])
    fits = [one.fit.remote(steps, fault) for one in trainers]
    if fault == "kill":
        ray.wait(fits, timeout=8)
        ray.kill(trainers[SHORT])
    ray.get(fits)
    print("done", flush=True)


if __name__ == "__main__":
    main()
