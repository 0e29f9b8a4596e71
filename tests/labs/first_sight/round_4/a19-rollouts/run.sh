#!/usr/bin/env bash
# the actor plays and drops its games into games/, the learner takes them from there
set -e
mkdir -p games
{python} actor.py games 5 25 &
{python} -m torch.distributed.run --standalone --nproc_per_node 2 learner.py games 5
wait
