"""Which phase the job is in: the state machine of its life, and who may move it.

    launch, rendezvous, model_load, data_prep, comm_init, compile, training, first_step, steady,
    and eval and ckpt_save between steps; teardown, ended

This is the usual order, not a rule: a log names the phases it has lines for, and each of them may follow each.
Four sources move the phase, each for a reason of its own:

- the log marks a phase (`mark`, called by `Progress` and `Saves`): it is believed, and is `marked` too, the
  phase to which the job returns when what stacks showed is over. A mark of the start-up after the first step
  is another process's and is left out (`Progress`). A step marks steady; before the first one, what would be
  steady is first_step.
- processes: the first rank that is found ends launch (rendezvous for a distributed job, else model_load). A
  process that takes a rank over (an elastic restart) marks rendezvous from any phase; the command's end is
  ended, for good.
- stacks, for what logs do not say: a rank found in a part of a training step ends rendezvous (training: the
  log is not understood, or was joined late), and one in a save makes steady, first_step, training and eval
  ckpt_save. When no rank is in a save any more the job is in the marked phase again; a save that the log
  marked is over when the log says so.
- other nodes, for a node whose own log tells no steps: the job hub's word, which is not `own`.

What processes show is a guess: a job whose log is not understood and whose stacks are in no part of a step would
be in its rendezvous for hours. `shown` is what people see, "not_known" where nothing has shown the phase.

Each change is announced as `PhaseChanged`: a save begins and ends with its phase, the longest of each phase is kept
for the patience with the next, and time outside of steady belongs to no step.
"""

from __future__ import annotations

from collections import deque

from diag.model.observations import NodeDigest, RunEnded, RunStarted
from diag.state.ranks import Ranks
from diag.state.reducer import MainStackRead, PhaseChanged, RankStarted, Reducer, Tell, takes

# Marks of the start-up that other processes of the job may print again at any time.
STARTING_PHASES = ("launch", "rendezvous", "model_load")
# A job in one of these has not begun to train.
BEFORE_TRAINING = frozenset({*STARTING_PHASES, "data_prep", "comm_init"})
NOT_KNOWN = "not_known"
# So long a start-up that nothing shows is believed. Ours: ten times what ranks need to meet on a slow file system.
_GUESS_SECONDS = 600.0
_INTERRUPTED_BY_SAVES = ("steady", "first_step", "training", "eval")


class Phases(Reducer):
    """Owns the phase."""

    def __init__(self, ranks: Ranks, tell: Tell) -> None:
        self._ranks, self._tell = ranks, tell
        self.now = "launch"  # the phase that the job is in
        self.since: float | None = None  # when it began
        self.guessed = True  # neither the log nor a stack has shown it
        self._joined = False  # the ranks have a process group: whatever they do, they have met
        self._attached = False  # diag came later: how far the job was then is not known
        self.line = ""  # the line that marked it; "" when stacks or processes showed it
        self.marked = "launch"  # the last that the log named: what a save seen in stacks returns to
        self.own = "launch"  # without what another node's log says
        self.history: deque[tuple[float, str]] = deque(maxlen=64)  # when each began

    def shown(self, now: float) -> str:
        """The phase as people see it."""
        known = not self.guessed or not (
            self._joined or self.now == "model_load" or self.since is None or self._is_old(now)
        )
        return self.now if known else NOT_KNOWN

    def has_begun(self, now: float) -> bool:
        """A job of which nothing shows how far it is runs, and does not start, from some time on."""
        return self.guessed and self._is_old(now)

    def _is_old(self, now: float) -> bool:
        return self._attached or (self.since is not None and now - self.since > _GUESS_SECONDS)

    def then(self, at: float) -> str:
        """The phase at an earlier moment, as it was known until then; the first known for a time before."""
        first = self.history[0][1] if self.history else self.now
        return next((phase for began, phase in reversed(self.history) if began <= at), first)

    def mark(self, at: float, phase: str, line: str = "", *, guessed: bool = False) -> None:
        """The log says so, in this line; `guessed`: only another attempt's processes."""
        self.marked = phase
        self.enter(at, phase, guessed=guessed)
        self.line = line

    def enter(self, at: float, phase: str, *, own: bool = True, guessed: bool = False) -> None:
        self.guessed = guessed
        if own:
            self.own = phase
        if phase != self.now:
            changed = PhaseChanged(self.now, self.since, phase)
            self.now, self.since, self.line = phase, at, ""
            self.history.append((at, phase))
            self._tell(at, changed)

    def follow(self, at: float, lead: NodeDigest) -> None:
        """The hub of the node that is furthest says so."""
        self.marked = lead.marked_phase
        self.enter(at, lead.phase)
        self.line = lead.phase_line

    @takes(RunStarted)
    def _run_started(self, at: float, fact: RunStarted) -> None:
        self.since, self._attached = at, fact.attached

    @takes(RunEnded)
    def _run_ended(self, at: float, fact: RunEnded) -> None:
        self.enter(at, "ended")

    @takes(RankStarted)
    def _rank_started(self, at: float, event: RankStarted) -> None:
        self._joined |= event.found.group > 0
        if self.now == "launch" and not event.in_log:
            several = event.found.distributed and event.found.placement.world_size > 1
            self.enter(at, "rendezvous" if several else "model_load", guessed=True)

    @takes(MainStackRead)
    def _stack(self, at: float, event: MainStackRead) -> None:
        """ms-swift 4.x prints nothing when a save starts: only the stacks tell."""
        starts = self.now == "rendezvous" or (self.guessed and self.now == "model_load")
        if starts and self._ranks.training:
            self.enter(at, "training")
        saving = bool(self._ranks.saving)
        if saving and self.now in _INTERRUPTED_BY_SAVES:
            self.enter(at, "ckpt_save")
        elif not saving and self.now == "ckpt_save" and self.marked != "ckpt_save":
            self.enter(at, self.marked if self.marked != "launch" else "training")
