"""One target in a process of its own: `python -m tests.labs.fuzz.worker TARGET ...`. What it counts stands in
STATS as it goes on.

With atheris (libFuzzer for Python) branches that were not taken before guide which inputs are changed
further; without it inputs are made from the recorded ones alone. An input that is at fault is kept, and the
search goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.labs.fuzz.guard import Guard, place_of

__all__ = ["Trial", "has_atheris", "seeded"]

_MOST_KEPT = 20  # different faults of one target
_TELL_SECONDS = 1.0
# The readers, of which branches guide the search; judgement behind them is run as it is.
_GUIDES = [
    "diag.engine.journal",
    "diag.agent.cluster",
    "diag.cli",
    "diag.cli.client.http",
    "diag.launch.launchers",
    "diag.engine.importers",
    "diag.preflight.manifest",
    "diag.engine.replay",
    "diag.detectors.rules",
    "diag.settings",
    "diag.sources",
    "diag.cli.tui",
]


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


class Trial:
    """Inputs of one target, one after the other: what each did, and those that are kept."""

    def __init__(
        self, target: Any, home: Path, kept: Path, stats: Path | None = None, guard: Guard | None = None
    ) -> None:
        self.target = target
        self.executions = 0
        self.faults: dict[str, str] = {}  # by place: the kept file
        self.slowest = 0.0
        self._home, self._kept, self._stats = home, kept, stats
        self._guard = guard or Guard(home)
        self._told = time.monotonic()

    def one(self, data: bytes) -> BaseException | None:
        """Runs it; the fault, if it was at fault."""
        self.executions += 1
        began = time.process_time()
        try:
            with self._guard.watching():
                self.target.run(data, self._home)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # anything that comes out of a reader is a fault
            self._keep(data, error)
            return error
        finally:
            self.slowest = max(self.slowest, time.process_time() - began)
            self.tell(_TELL_SECONDS)
        return None

    def tell(self, seconds: float = 0.0) -> None:
        if self._stats is None or time.monotonic() - self._told < seconds:
            return
        self._told = time.monotonic()
        told = {
            "executions": self.executions,
            "slowest_seconds": round(self.slowest, 3),
            "faults": self.faults,
        }
        made = self._stats.with_suffix(".part")
        made.write_text(json.dumps(told))
        made.replace(self._stats)

    def _keep(self, data: bytes, error: BaseException) -> None:
        place = place_of(error)
        if place in self.faults or len(self.faults) >= _MOST_KEPT:
            return
        self._kept.mkdir(parents=True, exist_ok=True)
        file = self._kept / f"{self.target.name}@{hashlib.sha1(data).hexdigest()[:12]}"
        file.write_bytes(data)
        told = "".join(traceback.format_exception(error))
        file.with_name(f"{file.name}.txt").write_text(told[-8000:], errors="backslashreplace")
        self.faults[place] = str(file)
        self.tell()


def seeded(trial: Trial, seed: int, wanted: Callable[[int], bool]) -> None:
    """Inputs without guidance, as long as `wanted(executions)`: the recorded ones, then changed ones."""
    from tests.labs.fuzz.mutate import mutated

    chance = random.Random(f"{seed}/{trial.target.name}")
    pool = trial.target.seeds()
    for data in pool:
        if not wanted(trial.executions):
            return
        trial.one(data)
    while wanted(trial.executions):
        trial.one(mutated(chance.choice(pool), trial.target.form, pool, chance))


def _guided(trial: Trial, options: argparse.Namespace, corpus: Path) -> None:
    """Ends the process: libFuzzer calls exit."""
    import atheris

    from tests.labs.fuzz.mutate import mutated

    pool = trial.target.seeds()
    for number, data in enumerate(pool):
        (corpus / f"seed-{number:04d}").write_bytes(data[: 1 << 20])

    def changed(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.1:
            return atheris.Mutate(data, most)  # type: ignore[no-any-return]
        return mutated(data, trial.target.form, pool, chance, most)

    def one(data: bytes) -> None:
        trial.one(data)

    words = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed + 1}",
        "-max_len=65536",
        "-len_control=0",
        "-reduce_inputs=0",
        "-timeout=60",
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
        "-verbosity=1",
        f"-artifact_prefix={options.kept}/{trial.target.name}@",
        *([f"-runs={options.runs}"] if options.runs else []),
        str(corpus),
    ]
    atheris.Setup(words, one, custom_mutator=changed)
    atheris.Fuzz()


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=10, help="with what it takes to start")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--stats", type=Path)
    parser.add_argument(
        "--scratch", type=Path, required=True, help="an empty folder, which the caller removes"
    )
    parser.add_argument(
        "--engine", choices=("atheris", "seeded"), default="atheris" if has_atheris() else "seeded"
    )
    parser.add_argument("--repeat", type=Path, help="run this input once, and raise what it raises")
    options = parser.parse_args(words)
    sys.dont_write_bytecode = True
    logging.disable()
    began = time.monotonic()
    trial = _made(options)
    options.seconds = max(1, round(options.seconds - (time.monotonic() - began)))
    if options.repeat is not None:
        error = trial.one(options.repeat.read_bytes())
        if error is not None:
            raise error
        print(f"no fault; {trial.slowest:.2f} s")
        return
    if options.engine == "atheris":
        trial.tell()
        _guided(trial, options, options.scratch / "corpus")
    end = time.monotonic() + options.seconds
    seeded(
        trial,
        options.seed,
        lambda done: time.monotonic() < end and not (options.runs and done >= options.runs),
    )
    trial.tell()


def _made(options: argparse.Namespace) -> Trial:
    home, corpus = options.scratch / "home", options.scratch / "corpus"
    home.mkdir()
    corpus.mkdir()
    tempfile.tempdir = str(home)
    options.kept.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if options.engine == "atheris" and options.repeat is None:
            import atheris

            stack.enter_context(atheris.instrument_imports(include=_GUIDES))
        from tests.labs.fuzz.targets import TARGETS

        target = TARGETS[options.target]
        for data in target.seeds()[:3]:  # modules that are imported when they are needed are instrumented too
            with contextlib.suppress(Exception):
                target.run(data, home)
    return Trial(target, home, options.kept, options.stats)


if __name__ == "__main__":
    main()
