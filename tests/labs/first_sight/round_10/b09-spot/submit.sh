#!/usr/bin/env bash
# Trains on spot capacity: torchrun restarts the ranks when one is taken away.
# RECLAIM stands for the provider, which takes a worker back once.
cd "$(dirname "$0")" || exit 1
export OMP_NUM_THREADS=1
rm -rf state && mkdir -p state
reclaim() {
  while sleep 0.3; do
    s=$(cat state/worker1.progress 2>/dev/null) || continue
    set -- $s
    if [ "${1:-0}" -ge 63 ]; then
      echo "$(date -u +%H:%M:%S) spot: worker 1 (pid $2) is reclaimed"
      kill -9 "$2"
      return
    fi
  done
}
reclaim &
{python} -m torch.distributed.run --nproc_per_node 2 --max-restarts 3 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 \
   train.py --state state --steps 1200
wait
