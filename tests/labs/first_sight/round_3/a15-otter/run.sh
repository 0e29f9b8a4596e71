#!/bin/bash
rm -f mirror.port set.bin
{python} mirror.py 50 &
mirror=$!
{python} -m torch.distributed.run --standalone --nproc-per-node=2 train.py
rc=$?
kill $mirror
exit $rc
