"""Lines in which a program tells the version of a package."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model.observations import Observation, VersionSeen

_FORMS = (
    # ms-swift 4.6.0, stderr of rank 0:   [INFO:swift] swift.__version__: 4.6.0
    ("ms-swift", re.compile(r"^\[INFO:swift\] swift\.__version__: ([\w.+-]{1,40})")),
    #   [INFO:swift] megatron.core.__version__: 0.16.1
    ("megatron-core", re.compile(r"^\[INFO:swift\] megatron\.core\.__version__: ([\w.+-]{1,40})")),
    # ms-swift 4.1-4.6:   [INFO:swift] mcore_bridge.__version__: 1.6.5
    ("mcore-bridge", re.compile(r"^\[INFO:swift\] mcore_bridge\.__version__: ([\w.+-]{1,40})")),
    # DeepSpeed 0.9-0.19:   [2026-11-20 22:48:19,123] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info: version=0.19.8
    ("deepspeed", re.compile(r"DeepSpeed info: version=([\w.]{1,40})")),
    # NCCL 2.28.9, two H200, 2026-11-20:   NCCL version 2.28.9+cuda13.0
    ("nccl", re.compile(r"NCCL version (\d{1,3}(?:\.\d{1,3}){1,3})")),
)

WORDS = ("__version__: ", "DeepSpeed info", "NCCL version")  # one stands in each line that tells


def may_tell(text: str) -> bool:
    return any(word in text for word in WORDS)


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    for package, form in _FORMS:
        if match := form.search(text):
            yield VersionSeen(rank, package, match[1])
