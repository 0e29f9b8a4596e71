import os
import time
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path


@dataclass
class Config:
    name: str = "run"
    steps: int = 1200
    ckpt_every: int = 100
    lr: float = 3e-4
    width: int = 192
    rank: int = field(default_factory=lambda: int(os.environ["RANK"]))
    local_rank: int = field(default_factory=lambda: int(os.environ["LOCAL_RANK"]))

    @property
    def main(self):
        return self.rank == 0

    def __post_init__(self):
        # the shared file system does not like all ranks at once
        time.sleep(1.7 * self.local_rank)
        self.run_dir = Path("runs") / f"{self.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}"

    @classmethod
    def parse(cls, argv):
        kinds = {f.name: f.type for f in fields(cls)}
        pairs = dict(a.split("=", 1) for a in argv)
        return cls(**{k: {"int": int, "float": float}.get(getattr(kinds[k], "__name__", kinds[k]), str)(v)
                      for k, v in pairs.items()})
