#!/bin/bash
# container limits of the cluster, as the pod template sets them
cd "$(dirname "$0")"
ulimit -S -n 192
ulimit -H -n 192
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
rm -rf work && mkdir -p work
{python} make_replay.py work/replay 400
exec {python} -m torch.distributed.run --nproc-per-node=2 --master-port=31409 run.py --work work --rounds 2000
