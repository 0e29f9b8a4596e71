#!/bin/bash
# distillation over night; results go to a file at the end
export OMP_NUM_THREADS=1
exec "${1:-python3}" -m torch.distributed.run --nproc-per-node=3 --master-port=31119 distill.py
