#!/bin/bash
rm -rf cache events.txt
mkdir cache && touch events.txt
tail -n +1 -f events.txt | {python} janitor.py &
{python} -m torch.distributed.run --standalone --nproc-per-node=2 train.py
kill %1
