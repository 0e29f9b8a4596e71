"""What the parts of a node's hub need of it, beside what the outputs do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from diag.launch.rundir import RunDir
from diag.model import Record
from diag.outputs.view.view import HubView


class NodeHub(HubView, Protocol):
    @property
    def host(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def run_dir(self) -> RunDir | None: ...
    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def environment(self) -> Mapping[int, Mapping[str, str]]:
        """Of each rank, the allow-listed part."""
        ...

    @property
    def closer(self) -> bool:
        """The job is suspected: more is read."""
        ...

    def put(self, record: Record) -> None: ...
    def gpu_states(self) -> dict[int, str]: ...
