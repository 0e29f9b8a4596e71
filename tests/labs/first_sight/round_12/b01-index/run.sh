#!/bin/bash
# usage: run.sh [python]
PY=${1:-python}
cd "$(dirname "$0")"
rm -rf work && mkdir work
$PY make_shards.py work/shards 6
exec $PY -m torch.distributed.run --nproc-per-node 2 --master-port 31801 train.py --data work/shards --cache work/cache
