"""The job's comment by a stand-in of scontrol, which answers as 22.05 does, and the file for an exclude list. The real one is
in tests/cluster/slurm."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.outputs.feeds.feed import Telling, Told
from diag.outputs.feeds.slurm import FEED
from tests.feeds.facts import GPU, HANG, change, opened, over

# Of `scontrol show job`, slurm-wlm 22.05.8: no line Comment where there is none.
SCONTROL = """\
#!{python}
import json, os, sys
from pathlib import Path
state = Path({state!r})
comment = state.read_text() if state.exists() else ""
with open({asked!r}, "a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
if os.environ.get("SLURM_DOWN"):
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
if sys.argv[1] == "show":
    print("JobId=4711 JobName=train\\n   UserId=me(1000) GroupId=me(1000) MCS_label=N/A\\n   WorkDir=/home/me")
    print(f"   Comment={{comment}} \\n   Power=" if comment else "   Power=")
else:
    state.write_text(sys.argv[3].partition("=")[2])
"""


class Scontrol:
    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        self.comment, self.asked = folder / "comment", folder / "asked"
        program = folder / "bin" / "scontrol"
        program.write_text(
            SCONTROL.format(python=sys.executable, state=str(self.comment), asked=str(self.asked))
        )
        program.chmod(0o755)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_NODEID": "0",
            "SLURMD_NODENAME": "n1",
        }

    def tell(self, telling: Telling, **options: str) -> Told:
        payload = FEED.payload(telling, options, self.environment)
        assert payload is not None
        return FEED.send(payload, options, self.environment)

    @property
    def updates(self) -> list[list[str]]:
        return [
            words for words in map(json.loads, self.asked.read_text().splitlines()) if words[0] == "update"
        ]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scontrol:
    found = Scontrol(tmp_path)
    monkeypatch.setenv("PATH", found.environment["PATH"])
    return found


def test_comment_names_what_is_open(slurm: Scontrol) -> None:
    assert slurm.tell(opened(change(HANG), change(GPU))) == Told(True, "accepted")

    assert slurm.updates == [
        [
            "update",
            "JobId=4711",
            "Comment=diag: CRITICAL hang (data_loading): rank 3; CRITICAL gpu-fault: rank 1",
        ]
    ]


def test_comment_says_that_it_is_over(slurm: Scontrol) -> None:
    slurm.tell(opened(change(HANG)))
    slurm.tell(over(change(HANG, "resolved", at=1060.0)))

    assert slurm.comment.read_text() == "diag: resolved: hang (data_loading): rank 3"


def test_comment_of_the_user_stays(slurm: Scontrol) -> None:
    slurm.comment.write_text("paper, table 3")

    told = slurm.tell(opened(change(HANG)))

    assert told == Told(False, "the job has a comment of somebody else, which stays")
    assert slurm.comment.read_text() == "paper, table 3"


def test_what_a_job_printed_is_one_word_of_the_command(slurm: Scontrol, tmp_path: Path) -> None:
    strange = 'x\'; touch "$(pwd)"\n| & `id`'

    slurm.tell(opened(change({**HANG, "class": strange})))

    ((_, _, comment),) = slurm.updates
    assert comment.startswith("Comment=diag: CRITICAL hang (x'; touch") and "\n" not in comment


def test_long_list_is_cut(slurm: Scontrol) -> None:
    slurm.tell(opened(*(change(HANG, subject=f"等 {number}") for number in range(50))))

    ((_, _, comment),) = slurm.updates
    assert len(comment.removeprefix("Comment=").encode()) <= 250 and comment.endswith("...")


def test_controller_that_does_not_answer_is_asked_later(slurm: Scontrol) -> None:
    slurm.environment["SLURM_DOWN"] = "1"

    told = slurm.tell(opened(change(HANG)))

    assert told.again and "Unable to contact slurm controller" in told.text


def test_file_has_the_nodes_at_fault_for_an_exclude_list(slurm: Scontrol, tmp_path: Path) -> None:
    file = tmp_path / "exclude"
    other = {**GPU, "hosts": ["gpu-18.cluster"], "told_by": "gpu-17"}

    slurm.tell(opened(change(GPU), change(other), change(HANG)), **{"exclude-file": str(file)})
    assert file.read_text() == "n1,gpu-18\n"

    slurm.tell(over(change(GPU, "resolved", at=1010.0)), **{"exclude-file": str(file)})
    assert file.read_text() == ""


@pytest.mark.parametrize(
    "finding",
    [
        HANG,
        {**GPU, "confidence": "medium"},
        {**GPU, "told_by": "gpu-17"},  # of some node: the job hub does not say which
    ],
)
def test_no_file_without_a_node_that_is_at_fault_for_sure(
    finding: dict[str, Any], slurm: Scontrol, tmp_path: Path
) -> None:
    told = slurm.tell(opened(change(finding)), comment="off", **{"exclude-file": str(tmp_path / "exclude")})

    assert told == Told(True, "no node at fault")
    assert not (tmp_path / "exclude").exists() and not slurm.asked.exists()


def test_other_nodes_than_the_first_tell_nothing() -> None:
    assert FEED.payload(opened(change(HANG)), {}, {"SLURM_JOB_ID": "1", "SLURM_NODEID": "1"}) is None


def test_comment_stays_where_another_finding_took_its_place() -> None:
    replaced = {**change(HANG, "resolved", at=1010.0), "replaced": True}

    assert FEED.payload(over(replaced), {}, {"SLURM_JOB_ID": "1"}) is None


def test_what_is_lacking_is_said(slurm: Scontrol, tmp_path: Path) -> None:
    assert FEED.lacking({}, slurm.environment) == ""
    assert FEED.lacking({}, {}) == "this is no job of Slurm: SLURM_JOB_ID is not set"
    assert FEED.lacking({}, {"SLURM_JOB_ID": "1", "PATH": str(tmp_path)}).startswith("scontrol is not found")
    assert FEED.lacking({"comment": "off"}, {"SLURM_JOB_ID": "1", "PATH": str(tmp_path)}) == ""
