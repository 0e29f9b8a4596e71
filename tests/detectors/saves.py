"""A job that saves checkpoints, as the sidecar reads its memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from diag.detectors.memory.forecast import HostOomForecastDetector
from diag.model import Finding
from diag.model.observations import (
    CgroupMemory,
    Iteration,
    SaveFinished,
)
from tests.facts import Story

GIB = 1 << 30


JOB, STAGED = 20 * GIB, 20 * GIB


@dataclass
class Job:
    """A job of 1 s a step that saves every 10 steps, read as the sidecar does: twice a second while memory
    changes."""

    limit: int | None
    story: Story = field(default_factory=lambda: Story([HostOomForecastDetector()]))
    needed: int = JOB
    cache: int = 0
    counter: int = 0
    iteration: int = 0
    path: str = "/pod/trainer"
    said: list[Finding] = field(default_factory=list)
    judged: int = 0

    def read(self, needed: int) -> None:
        self.needed = needed
        self.counter = max(self.counter, needed + self.cache)
        self.story.tell(
            CgroupMemory(0, 2, self.path, needed + self.cache, self.limit, self.counter, 0, self.cache)
        )
        urgent = self.story.engine.job.urgent
        if urgent != self.judged:  # as the engine does with a record
            self.judged = urgent
            self.story.engine._check(self.story.now)
        self.said += self.story.findings()

    def steps(self, count: int = 10, leak: int = 0) -> None:
        for _ in range(count):
            self.story.wait(1.0)
            self.iteration += 1
            self.story.tell(Iteration(None, self.iteration, 0, f"iteration {self.iteration}"))
            self.read(self.needed + leak)

    def rise(self, staged: int, seconds: float = 10.0, share: float = 1.0) -> int:
        """The staging, or its first part. Returns what was needed before it."""
        base, looks = self.needed, round(seconds * 2)
        for look in range(1, round(looks * share) + 1):
            self.story.wait(seconds / looks)
            self.read(base + staged * look // looks)
        return base

    def save(self, staged: int = STAGED, kept: int = 0, seconds: float = 10.0) -> None:
        base = self.rise(staged, seconds)
        self.story.wait(2.0)
        self.read(base + kept)
        self.story.tell(SaveFinished(None, "Successfully saved", f"/out/checkpoint-{self.iteration}"))
        self.story.wait(0.5)
        self.read(base + kept)
