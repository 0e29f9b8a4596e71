"""Each command in README and the guides: run in a folder that has what it names, or read by the parser that
would get it."""

from __future__ import annotations

import functools
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from diag.cli.main import VERBS
from tests.guide.checks import NOT_RUN, Unknown, check, check_diag
from tests.guide.pages import (
    PAGES,
    ROOT,
    alternatives,
    blocks,
    commands,
    is_loop,
    lines,
    simple_commands,
    spans,
    without_comment,
)

CAPTURES = ROOT / "tests/captures"
SHOWN = [
    (page.relative_to(ROOT), line)
    for page in PAGES
    for shown in commands(page)
    for line in alternatives(shown)
]
TO_RUN = sorted({line for _, line in SHOWN if not is_loop(line) and not check(line)})
# What a page leaves open (`CMD ...`), as something that is like it.
CMD = {
    "doctor": "torchrun --nproc_per_node 1 train.py",
    "estimate": "megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-30B-A3B",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages name, under the names that they use."""
    here = tmp_path_factory.mktemp("reader")
    recorded = CAPTURES / "h200-live/data-hang"
    for name in ("RUN_DIR", "runs/NEWEST", "diag-JOBID/NODE/20261121-023500-abcdef"):
        shutil.copytree(recorded, here / name)
    with tarfile.open(here / "BUNDLE.tar.gz", "w:gz") as bundle:
        bundle.add(recorded / "journal-000001.jsonl.gz", "journal-000001.jsonl.gz")
    for name in ("FOLDER", "evidence"):
        shutil.copytree(CAPTURES / "loose/data_hang", here / name)
    log = CAPTURES / "logs/megatron_dpo_4.6.0.log"
    shutil.copy(log, here / "train.log")
    (here / "train.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    shutil.copytree(ROOT / "rules/signatures/nccl", here / "my-rules")
    shutil.copy(ROOT / "deploy/kubernetes/base/claim.yaml", here / "FILE")
    (here / "train.py").write_text("import torch\n")
    for name in ("deploy", "Makefile", "requirements", "pyproject.toml"):
        (here / name).symlink_to(ROOT / name)
    (here / "bin").mkdir()
    for name, words in (("diag", "-m diag"), ("python", "")):
        (here / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (here / "bin" / name).chmod(0o755)
    for _ in range(3):  # what -1, -2 and -3 are
        _run(here, "diag run -- true")
        _run.cache_clear()
    return here


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=lambda part: str(part)[:90])
def test_command_is_one_that_diag_or_its_files_know(page: Path, line: str) -> None:
    if not is_loop(line):
        check(line)


@pytest.mark.parametrize("line", TO_RUN, ids=lambda line: line[:90])
def test_command_runs_and_ends_with_an_answer(folder: Path, line: str) -> None:
    answer = _run(folder, line)

    assert answer.returncode in (0, 10), answer.stdout + answer.stderr
    assert (answer.stdout + answer.stderr).strip(), "it says nothing"
    assert "Traceback" not in answer.stderr


def test_collected_folder_and_recorded_run_name_the_culprit_that_the_guides_speak_of(folder: Path) -> None:
    for line in (
        "diag replay FOLDER",
        "diag replay RUN_DIR",
        "diag replay BUNDLE.tar.gz",
        "diag replay diag-JOBID/NODE/*",
    ):
        assert re.search(r"(hang|held-up) \(data_loading\): rank 1;", _run(folder, line).stdout), line


@functools.cache
def _run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    verb = next((words[1] for _, words in simple_commands(line) if words[0] == "diag"), "")
    line = re.sub(r"CMD \.\.\.|CMD$", CMD.get(verb, "CMD"), line)
    if line.startswith("make "):
        line = line.replace("make ", "make -n ", 1)  # what it would do
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DIAG_")}
    environment.update(PATH=f"{folder / 'bin'}:{os.environ['PATH']}", PYTHONPATH=str(ROOT), LANG="C.UTF-8")
    environment["XDG_STATE_HOME"] = str(folder / "state")
    if "estimate" in line:
        environment.setdefault("NPROC_PER_NODE", "8")
    words = ["bash", "-c", line]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_words_of_diag_within_the_text_are_read_by_its_parser(page: Path) -> None:
    for span in spans(page):
        for line in alternatives(span):
            words = simple_commands(line)[0][1]
            if len(words) == 2:  # `diag run` speaks of the verb
                assert words[1] in VERBS
            else:
                check_diag(words)


@pytest.mark.parametrize(
    "line",
    [
        "diag dumb --all-ranks",
        "diag dump --every-rank",
        "nvidia-smi",
        "diag run -- python -m diag_job --ranks 4",
        "diag run -- python -m diag_job --fault no-such-fault",
        "FAULT=sigstop:rank=7 diag run -- bash deploy/jobs/tiny/run.sh",
        "sbatch deploy/slurm/no-such.sbatch CMD",
        "kubectl exec POD -c diag -- diag dump --al-ranks-of-all",
        "diag replay - | a-new-program",
    ],
)
def test_command_that_nobody_knows_is_refused(line: str) -> None:
    with pytest.raises(Unknown):
        check(line)


def test_every_exception_is_used() -> None:
    used = {why for _, line in SHOWN if not is_loop(line) for why in check(line)}

    assert used == set(NOT_RUN.values())


def test_pages_have_their_commands_found() -> None:
    assert without_comment("diag flame 3    # rank 3's time") == "diag flame 3"
    assert len(SHOWN) > 80
    assert all(commands(page) for page in PAGES)
    assert lines(blocks(ROOT / "README.md")[0]) == ["diag run -- megatron rlhf --rlhf_type dpo ..."]


@pytest.mark.parametrize("page", sorted((ROOT / "docs/zh/howto").glob("*.md")), ids=lambda page: page.stem)
def test_chinese_guide_types_the_commands_of_the_english_one(page: Path) -> None:
    assert commands(page) == commands(ROOT / "docs/howto" / page.name)


def test_every_guide_is_there_in_chinese() -> None:
    english, chinese = (
        {page.name for page in (ROOT / part).glob("*.md")} for part in ("docs/howto", "docs/zh/howto")
    )

    assert chinese == english
