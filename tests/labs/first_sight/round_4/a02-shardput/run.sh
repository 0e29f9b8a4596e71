#!/usr/bin/env bash
# local gateway in front of the bucket, then the training
set -u
export GATEWAY_PORT_FILE=$PWD/.gateway-$$
{python} gateway.py "$GATEWAY_PORT_FILE" &
gateway=$!
trap 'kill $gateway 2>/dev/null; rm -f "$GATEWAY_PORT_FILE"' EXIT
while [ ! -s "$GATEWAY_PORT_FILE" ]; do sleep 0.2; done
export BUCKET_ENDPOINT=http://127.0.0.1:$(cat "$GATEWAY_PORT_FILE")
{python} -m torch.distributed.run --standalone --nproc_per_node 3 train.py --save-every 20 --steps 400
