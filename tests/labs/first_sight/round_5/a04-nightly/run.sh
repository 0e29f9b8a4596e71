#!/bin/bash
# Train on this host; a snapshot of the sharded optimizer is taken every few seconds.
cd "$(dirname "$0")"
rm -rf run && mkdir -p run/ckpt run/snap
bash snapshot.sh > run/snapshot.log 2>&1 < /dev/null &
snap=$!
trap 'kill $snap 2>/dev/null' EXIT
{python} -m torch.distributed.run --standalone --nproc_per_node 2 train.py --steps 1500
