#!/bin/bash
# quota of the shared volume, as the site's profile applies it
set -e
cd "$(dirname "$0")"
ulimit -f 24576
export OMP_NUM_THREADS=1
rm -rf save && mkdir -p save
{python} spawn.py -n 2 --port 31410 -- sac.py --save save --updates 3000
