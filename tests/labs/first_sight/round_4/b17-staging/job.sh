#!/bin/bash
set -e
rm -rf stage mirror.addr
{python} mirror.py mirror.addr 2> mirror.log &
M=$!
trap 'kill $M 2>/dev/null || true' EXIT
while [ ! -s mirror.addr ]; do sleep 0.2; done
export MIRROR=$(cat mirror.addr) STAGE=stage
{python} -m torch.distributed.run --standalone --nproc_per_node 3 train_audio.py
