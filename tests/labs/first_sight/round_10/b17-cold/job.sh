#!/bin/sh
cd "$(dirname "$0")" || exit 1
export OMP_NUM_THREADS=1
rm -rf cache; mkdir cache
{python} store.py cache/store.port &
STORE=$!
while [ ! -s cache/store.port ]; do sleep 0.2; done
{python} -m torch.distributed.run --nproc_per_node 2 --master-port 31419 bytes_lm.py --cache cache --steps 500
RC=$?
kill $STORE
exit $RC
