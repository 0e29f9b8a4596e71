"""What `make demo` puts on the screen: of a job's log its landmarks and diag's lines, of recorded evidence the report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from diag_job.demo import CASES, Screen, main

# ms-swift 4.6.0 and diag under `make demo` (two gloo ranks), cut; the counter is drawn again and again in one line
_PRINTED = """\
diag 0.1.0: watching pid 31193, page http://127.0.0.1:34543, run directory RUNS
  warnings.warn("Apex is not installed. Falling back to Torch Norm")
[INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2
[INFO:swift] Setting args.lazy_tokenize: False
[INFO:swift] The training of Epoch 0 starts...
diag| CRITICAL hang (data_loading): rank 1; 19:41:03, high confidence
diag|   do: Look at what the worker reads
diag|   waiting: rank 0; cause: dataloader_worker_blocked
Train:  33%|###  | 2/6 [00:34<00:56]\r{'loss': 0.7, 'iteration': '2/6'}
Train: 100%|#####| 6/6 [00:36<00:00]\r{'loss': 0.7, 'iteration': '6/6'}
diag: job finished (exit 0) after 1 min 22 s
"""
_FINDS = {"oom": "host-oom", "ib": "ib-fallback", "nan": "loss-nan"}


def test_screen_shows_landmarks_and_what_diag_says_and_no_other_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    log = tmp_path / "job.log"
    log.write_text(_PRINTED)
    with log.open("rb") as read, subprocess.Popen([sys.executable, "-c", ""]) as run:
        matched = Screen(read).follow(run, re.compile(r"diag\|   do: "), 20)

    shown = [re.sub(r"^ +\d+ s  ", "", line) for line in capsys.readouterr().out.splitlines()]
    lines = _PRINTED.splitlines()
    assert matched
    assert shown == [lines[0], lines[2], *lines[4:8], "... 'iteration': '6/6' ...", lines[-1]]


def test_screen_says_that_the_awaited_line_did_not_come(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("Killed\n")
    with log.open("rb") as read, subprocess.Popen([sys.executable, "-c", ""]) as run:
        assert not Screen(read).follow(run, re.compile("diag"), 20)


@pytest.mark.parametrize("case", CASES)
def test_recorded_case_shows_its_finding_and_what_to_type_next(
    case: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])

    assert main([case]) == 0

    said = capfd.readouterr().out
    assert re.search(rf"^CRITICAL {_FINDS[case]}\b", said, re.MULTILINE)
    after = said.partition("=== what next")[2]
    assert f"diag explain {_FINDS[case]}" in after and "make demo CASE=" in after
