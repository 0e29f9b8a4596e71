import os
import tempfile

import torch
import torch.distributed as dist

import actor
import learner


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    train_group = dist.new_group(list(range(world - 1)))
    sync_group = dist.new_group([0, world - 1])
    box = [os.path.join(tempfile.mkdtemp(prefix="actor"), "sock")]
    dist.broadcast_object_list(box, src=0)
    if rank == world - 1:
        actor.serve(box[0], sync_group)
    else:
        learner.learn(box[0], train_group, sync_group)
    dist.barrier()
    dist.destroy_process_group()


main()
