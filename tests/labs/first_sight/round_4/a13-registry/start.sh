#!/usr/bin/env bash
# registry page for the team, then the job itself
export REGISTRY=$PWD/registry.db
rm -f "$REGISTRY"
{python} -m registry.page &
page=$!
{python} -m torch.distributed.run --standalone --nproc_per_node 2 -m trainer.main conf/base.yaml
code=$?
kill $page
exit $code
