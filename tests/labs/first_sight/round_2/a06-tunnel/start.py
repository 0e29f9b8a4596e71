import os
import subprocess
import sys

import store

url = store.serve()
sys.exit(subprocess.call(
    [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"],
    env=dict(os.environ, STORE_URL=url)))
