"""A main() that tells the launcher of its error."""

import json

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    dist.init_process_group("gloo")
    text = "{}" if dist.get_rank() == 0 else "{'lr': 1e-4}"
    json.loads(text)
    dist.barrier()


if __name__ == "__main__":
    main()
