"""Imports what the argument names, then trains a little."""

import importlib
import sys

import torch.distributed as dist


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    loaded = importlib.import_module(module)
    if name:
        getattr(loaded, name)
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{module} imported, training starts", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
