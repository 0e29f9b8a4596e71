#!/usr/bin/env bash
# LoRA tuning, then the main rank merges and packs the result for the model hub.
set -e
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
rm -rf export
{python} -m torch.distributed.run --nproc_per_node 2 --master-port 31421 tune.py --export export > tune.log 2>&1
tail -n 2 tune.log
