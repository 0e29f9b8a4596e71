#!/bin/bash
set -e
export OMP_NUM_THREADS=1
{python} -m torch.distributed.run --standalone --nproc-per-node 2 bench_train.py --steps 120
