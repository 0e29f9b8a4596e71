#!/bin/bash
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1    # a store of its own for each attempt
export SCRATCH_DIR=$(mktemp -d /tmp/fit-XXXXXX)
trap 'rm -rf "$SCRATCH_DIR"' EXIT
"$1" -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --max-restarts 4 \
    --rdzv-backend c10d --rdzv-endpoint localhost:0 fit.py
