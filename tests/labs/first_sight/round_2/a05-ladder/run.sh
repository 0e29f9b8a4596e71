#!/bin/bash
# starts again from the last checkpoint when it ended with an error
for ATTEMPT in 1 2 3 4; do
    export ATTEMPT
    {python} -m torch.distributed.run --standalone --nproc_per_node 2 train.py && exit 0
    echo "attempt $ATTEMPT is over, the next one in 3 s"
    sleep 3
done
exit 1
