#!/bin/bash
# usage: launch.sh PYTHON
set -e
cd "$(dirname "$0")"
work=$(mktemp -d /tmp/restart-XXXXXX)
mkdir "$work/cache"
cp staged/manifest.json "$work/"
cp staged/shard-* "$work/cache/"      # what the last job left on this node
exec "$1" -m torch.distributed.run --nproc-per-node=2 --max-restarts=3 --master-port=31204 train.py --work "$work"
