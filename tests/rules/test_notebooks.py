"""The error of a notebook's cell, as its .ipynb keeps it, is read like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.model import Finding, Severity
from diag.outputs.report import report

RED, END = "\x1b[0;31m", "\x1b[0m"


def cell(name: str, value: str, *frames: str) -> str:
    """As nbformat 4 writes it, with IPython's traceback."""
    strings = [
        f"{RED}{'-' * 75}{END}",
        f"{RED}{name}{END}                  Traceback (most recent call last)",
        *frames,
        f"{RED}{name}{END}: {value}",
    ]
    output = {"ename": name, "evalue": value, "output_type": "error", "traceback": strings}
    return json.dumps({"cell_type": "code", "outputs": [output]}, indent=1) + "\n"


def found(text: str, folder: Path) -> list[Finding]:
    log = folder / "train.ipynb"
    log.write_text(text)
    engine = replay([log])[0]
    report(engine)
    return engine.active()


FRAMES = (
    f"Cell {RED}In[4], line 2{END}\n     1 model.train()\n---> 2 loss = step(batch)\n",
    f"File {RED}~/project/steps.py:31{END}, in step{RED}(batch){END}\n     30 # forward\n---> 31 loss = head(batch)\n",
)


def test_error_of_a_cell_is_named_with_its_own_words_and_frame(tmp_path: Path) -> None:
    (finding,) = found(cell("ShapeTrouble", "want 3 planes, have 5", *FRAMES), tmp_path)

    assert finding.summary.startswith('"ShapeTrouble: want 3 planes, have 5"')
    assert 'File "~/project/steps.py", line 31, in step' in finding.evidence[0].excerpt
    assert finding.severity is Severity.WARNING  # a cell's error ends no kernel


def test_rule_reads_the_value_of_a_cells_error(tmp_path: Path) -> None:
    text = cell("OSError", "[Errno 28] No space left on device: '/scratch/ck.pt'", *FRAMES)

    assert "28" in found(text, tmp_path)[0].evidence[0].excerpt
    assert found(text, tmp_path)[0].id != "unrecognised-failure"


def test_value_alone_is_shown(tmp_path: Path) -> None:
    (line,) = (one for one in cell("RuntimeError", "cannot split 7 heads").splitlines() if '"evalue"' in one)

    (finding,) = found(line + "\n", tmp_path)

    assert '"cannot split 7 heads"' in finding.summary


def test_number_of_the_line_is_the_files(tmp_path: Path) -> None:
    text = cell("ShapeTrouble", "want 3 planes, have 5", *FRAMES)
    log = tmp_path / "train.ipynb"
    log.write_text(text)
    engine = replay([log])[0]

    number = next(at for at, line in enumerate(text.splitlines(), 1) if '"evalue"' in line)
    assert engine.place_of(engine.active()[0].evidence[0].excerpt) == f"train.ipynb:{number}"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"source": ["raise ValueError('no')\n", "evalue = 3\n"]}, indent=1) + "\n",
        json.dumps({"outputs": [{"name": "stdout", "text": ["step 1\n", "step 2\n"]}]}, indent=1) + "\n",
        '{"traceback": [\n], "metadata": {"note": "ValueError: of the docs"}}\n',
    ],
)
def test_cells_without_an_error_are_no_finding(text: str, tmp_path: Path) -> None:
    assert [one for one in found(text, tmp_path) if one.severity.counts] == []
