"""The vocabulary: every typed fact that a detector may know, one frozen dataclass each.

Sources make these out of raw records (`parse`); detectors and the job state receive them. Sizes are bytes,
times are seconds, CPU times are seconds since the process began. Import the facts from here, whichever of
the modules below holds them.
"""

# ruff: noqa: F403
from __future__ import annotations

from diag.model.observations.base import *
from diag.model.observations.cluster import *
from diag.model.observations.collectives import *
from diag.model.observations.gpu import *
from diag.model.observations.log import *
from diag.model.observations.machine import *
from diag.model.observations.memory import *
from diag.model.observations.nccl import *
from diag.model.observations.network import *
from diag.model.observations.run import *
from diag.model.observations.stacks import *
