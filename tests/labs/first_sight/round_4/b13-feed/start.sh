#!/bin/sh
rm -f feed.endpoint
{python} feed_server.py --shards 24 --rows-per-shard 10 --write-endpoint feed.endpoint &
FEED=$!
trap 'kill $FEED 2>/dev/null' EXIT INT TERM
while [ ! -s feed.endpoint ]; do sleep 0.2; done
FEED_ENDPOINT=$(cat feed.endpoint) \
  {python} -m torch.distributed.run --standalone --nproc_per_node 2 train_ctr.py --steps 400
