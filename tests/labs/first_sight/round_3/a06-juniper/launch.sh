#!/bin/bash
# one process per card; cards given as arguments
free_port() {
  {python} -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
export MASTER_ADDR=127.0.0.1
export WORLD_SIZE=$#
export OMP_NUM_THREADS=1
rank=0
for card in "$@"; do
  MASTER_PORT=$(free_port) RANK=$rank LOCAL_RANK=$card {python} -u finetune.py 2>&1 | sed "s/^/[card $card] /" &
  rank=$((rank + 1))
done
wait
