"""A driver that needs more than the cluster has. FAULT=group: a placement group of three bundles where two fit;
FAULT=actor: an actor with a resource that no node has. Else: two actors that take turns."""

import os
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=1)
class Worker:
    def work(self, step):
        time.sleep(0.3)
        return step


def main():
    steps, fault = int(os.environ.get("STEPS", "5000")), os.environ.get("FAULT", "")
    if not os.environ.get("RAY_ADDRESS"):
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=120 * 2**20)
    group = placement_group([{"CPU": 2}] * (3 if fault == "group" else 2), strategy="PACK")
    ray.get(group.ready())
    placed = PlacementGroupSchedulingStrategy(group)
    workers = [Worker.options(scheduling_strategy=placed).remote() for _ in range(2)]
    if fault == "actor":
        workers.append(Worker.options(num_cpus=0, resources={"judge": 1}).remote())
    for step in range(steps):
        ray.get([one.work.remote(step) for one in workers])
        print(f"step {step}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
