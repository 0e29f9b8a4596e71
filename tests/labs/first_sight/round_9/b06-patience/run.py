import pathlib
import shutil
import sys
import tempfile

import torch.multiprocessing as mp

from trainer import fit

if __name__ == "__main__":
    out = pathlib.Path(tempfile.mkdtemp(prefix="patience-"))
    print("run directory", out)
    sys.stdout.flush()
    mp.start_processes(fit, args=(2, str(out), "127.0.0.1", 31206), nprocs=2, start_method="spawn")
    shutil.rmtree(out)
