#!/bin/bash
# trains and ships the log in segments
set -o pipefail
mkdir -p logs
{python} -u -m torch.distributed.run --nproc_per_node 3 --master-port 31602 train.py --steps 20000 2>&1 | {python} -u ship.py --lines 150 logs
