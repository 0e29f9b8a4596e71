#!/bin/sh
# data server + two trainers
rm -f shards.port
{python} serve_shards.py shards.port &
srv=$!
until [ -s shards.port ]; do sleep 0.2; done
{python} -m torch.distributed.run --standalone --nproc-per-node=2 fit.py --data http://127.0.0.1:$(cat shards.port)
rc=$?
kill $srv
exit $rc
