#!/bin/bash
PY={python}
rm -rf cache; mkdir cache
$PY hub.py cache/.port & HUB=$!
until [ -s cache/.port ]; do sleep 0.1; done
HUB_URL=http://127.0.0.1:$(cat cache/.port) $PY -m torch.distributed.run --standalone --nproc-per-node=2 stages.py
rc=$?
kill $HUB
exit $rc
