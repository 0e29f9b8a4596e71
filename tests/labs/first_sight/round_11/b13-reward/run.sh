#!/usr/bin/env bash
{python} reward_server.py 31690 &
rm_pid=$!
trap 'kill $rm_pid' EXIT
sleep 2
{python} -m torch.distributed.run --nproc_per_node 2 --master-port 31613 rl.py --port 31690
