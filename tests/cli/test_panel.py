"""What a person sees of a finding beside a real progress bar: the bar, the panel below it, and the bar going
on below that."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diag.model import Change, ChangeKind
from diag.outputs.terminal.text import panel
from diag.text.columns import columns as width_of
from tests.cli.terminal import Terminal, terminal

pytest.importorskip("tqdm")
DIAG = [sys.executable, "-m", "diag"]
STEPS = 60
NAMES = ("Epoch", "Train", "Batch")
LOSS = "{'loss': nan, 'grad_norm': nan, 'global_step/max_steps': '20/60'}"
ZH = {"DIAG_LANG": "zh"}
# The line is as ms-swift prints it; the job goes on when diag has told of it.
JOB = """
import os, sys, time
from pathlib import Path
from tqdm import tqdm
told = Path(os.environ["DIAG_RUN_DIR"]) / "findings.jsonl"
bars = [tqdm(total=60, desc=name, position=at, mininterval=0, ascii=False) for at, name in enumerate(sys.argv[1:])]
for step in range(60):
    if step == 20:
        tqdm.write(LOSS)
    for bar in bars:
        bar.update()
    while step == 30 and not (told.exists() and told.stat().st_size):
        time.sleep(0.01)
    time.sleep(0.02)
for bar in bars:
    bar.close()
print("the job's last line", flush=True)
"""

RICH = """
import os, sys, time
from pathlib import Path
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
told = Path(os.environ["DIAG_RUN_DIR"]) / "findings.jsonl"
with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), refresh_per_second=50) as shown:
    tasks = [shown.add_task(name, total=60) for name in sys.argv[1:]]
    for step in range(60):
        if step == 20:
            shown.console.print(LOSS, soft_wrap=True)
        for task in tasks:
            shown.advance(task)
        while step == 30 and not (told.exists() and told.stat().st_size):
            time.sleep(0.01)
        time.sleep(0.02)
print("the job's last line", flush=True)
"""


def job_seen(
    seen: Terminal, folder: Path, env: dict[str, str], bars: list[str], *, redirect: str = "", job: str = JOB
) -> None:
    script = folder / "job.py"
    script.write_text(f"LOSS = {LOSS!r}\n{job}")
    words = [
        *DIAG,
        "run",
        "-q",
        "--no-http",
        "--run-root",
        str(folder / "runs"),
        "--",
        sys.executable,
        str(script),
        *bars,
    ]
    seen.start(
        ["sh", "-c", '"$@" ' + redirect, "sh", *words],
        {"DIAG_LANG": "en", "DIAG_LONE_PROCESS_SECONDS": "600", **env},
    )


def wanted_panel(folder: Path, width: int, lang: str) -> list[str]:
    """The lines of the finding that opened, made of what `findings.jsonl` says of it."""
    told = next(folder.glob("runs/*/findings.jsonl")).read_text().splitlines()
    change = json.loads(told[0])
    assert change["change"] == "opened" and change["finding"]["id"] == "loss-nan"
    finding = SimpleNamespace(to_json=lambda: change["finding"])
    return panel(
        Change(ChangeKind.OPENED, cast(Any, finding), change["at"], change["at"]), False, width, lang
    ).split("\n")


def bar_at(line: str, name: str = "Train") -> int | None:
    """How many steps a bar says; tqdm cuts it where the terminal is narrow."""
    match = re.match(rf"{name}:? +\d+%[^0-9]* (\d+)/60 \[?\d+:\d\d", line)
    return int(match[1]) if match else None


@pytest.mark.parametrize(
    ("columns", "env", "lang"),
    [(80, {}, "en"), (40, {}, "en"), (80, {"NO_COLOR": "1"}, "en"), (80, ZH, "zh"), (40, ZH, "zh")],
)
def test_panel_stands_between_the_bar_and_the_bar_that_goes_on(
    tmp_path: Path, columns: int, env: dict[str, str], lang: str
) -> None:
    with terminal(columns) as seen:
        job_seen(seen, tmp_path, env, ["Train"])

        assert seen.wait() == 0

    lines, told = seen.lines, wanted_panel(tmp_path, columns, lang)
    at = lines.index(told[0])
    assert lines[at : at + len(told)] == told
    assert all(width_of(line) <= columns for line in told)
    assert sum(line.startswith("diag| ") for line in lines) == len(told)
    before, after = [bar_at(line) for line in lines[:at]], [bar_at(line) for line in lines[at + len(told) :]]
    assert 20 <= (before[-1] or 0) < STEPS  # the bar as it stood
    assert after == [STEPS, None]  # the same line goes on to its end, below
    assert lines[-1] == "the job's last line"
    assert "".join(line for line in lines[:at] if bar_at(line) is None) == LOSS
    assert (b"m" + told[0].split()[1].encode() + b"\x1b[0m" in seen.raw) == (not env.get("NO_COLOR"))
    if lang == "zh":
        assert any(re.search("[\u4e00-\u9fff]", line) for line in told)


def test_several_bars_go_on_below_and_none_is_torn(tmp_path: Path) -> None:
    # given tqdm's nested bars: it leaves the cursor at the first, and goes up and down for the others
    with terminal() as seen:
        job_seen(seen, tmp_path, {}, list(NAMES))

        assert seen.wait() == 0

    lines, told = seen.lines, wanted_panel(tmp_path, 80, "en")
    at = lines.index(told[0])
    assert lines[at : at + len(told)] == told
    assert None not in [bar_at(line, name) for line, name in zip(lines[at - 3 : at], NAMES, strict=True)]
    assert [bar_at(line, name) for line, name in zip(lines[at + len(told) :], NAMES, strict=False)] == [
        STEPS
    ] * 3


def test_live_display_of_rich_goes_on_below(tmp_path: Path) -> None:
    # given rich's live display: it leaves the cursor at the end of its last line, and goes up from there
    pytest.importorskip("rich")
    with terminal() as seen:
        job_seen(seen, tmp_path, {}, list(NAMES), job=RICH)

        assert seen.wait() == 0

    lines, told = seen.lines, wanted_panel(tmp_path, 80, "en")
    at = lines.index(told[0])
    assert lines[at : at + len(told)] == told
    assert [line.split()[0] for line in lines[at - 3 : at]] == list(NAMES)
    after = lines[at + len(told) :]
    assert [line.split()[0] for line in after] == [*NAMES, "the"]
    assert all("60/60" in line for line in after[:3])


def test_what_goes_to_a_file_has_the_same_lines_without_colour(tmp_path: Path) -> None:
    with terminal(columns=70) as seen:
        job_seen(seen, tmp_path, {}, ["Train"], redirect=f"2> {tmp_path}/err")

        assert seen.wait() == 0

    err = (tmp_path / "err").read_bytes()
    assert b"\x1b" not in err
    assert b"\n".join(line.encode() for line in wanted_panel(tmp_path, 80, "en")) in err
    assert seen.text.endswith("the job's last line") and "diag|" not in seen.text
