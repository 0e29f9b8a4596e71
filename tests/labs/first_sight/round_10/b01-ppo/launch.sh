#!/usr/bin/env bash
# PPO on a toy sentiment task: reward model as a service, two trainers.
set -u
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
RUN=runs/$(date +%s)
mkdir -p "$RUN"
{python} reward_server.py --port-file "$RUN/reward.port" > "$RUN/reward.log" 2>&1 &
SERVER=$!
trap 'kill $SERVER 2>/dev/null' EXIT
for _ in $(seq 1 120); do [ -s "$RUN/reward.port" ] && break; sleep 0.5; done
echo "reward model at 127.0.0.1:$(cat "$RUN/reward.port")"
{python} -m torch.distributed.run --nproc_per_node 2 --master-port 31401 \
    ppo.py --reward "127.0.0.1:$(cat "$RUN/reward.port")" --out "$RUN" --iters 400
