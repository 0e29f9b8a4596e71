"""The names of jobs, and the files by which Prometheus finds hubs: really written, renewed and taken away."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diag.agent.hub import Hub
from diag.launch.launchers.nodes import job_name
from diag.launch.service_discovery import SdFile, Target, reachable_host, sd_document, sd_path
from diag.settings import Settings

HERE = Target("10.0.0.7:9095", "812", "gpu-17", "20261121-120000-abcdef")
THERE = Target("10.0.0.8:9095", "812", "gpu-18", "20261121-120001-fedcba")


@dataclass
class Known:
    now: tuple[Target, ...] = (HERE,)

    def targets(self) -> tuple[Target, ...]:
        return self.now


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.launch.service_discovery._LOOK_SECONDS", 0.05)


def becomes(look: Callable[[], Any], wanted: Any, within: float = 20.0) -> None:
    until = time.monotonic() + within
    while look() != wanted:
        assert time.monotonic() < until, (look(), wanted)
        time.sleep(0.02)


def targets_in(path: Path) -> list[str]:
    return (
        [address for group in json.loads(path.read_text()) for address in group["targets"]]
        if path.exists()
        else []
    )


@pytest.mark.parametrize(
    ("setting", "command", "environment", "name"),
    [
        ("mine", [], {"SLURM_JOB_ID": "812"}, "mine"),
        ("", [], {"SLURM_JOB_ID": "812", "TORCHELASTIC_RUN_ID": "x"}, "812"),
        ("", [], {"TORCHELASTIC_RUN_ID": "dpo"}, "dpo"),
        ("", ["torchrun", "--rdzv_id", "dpo-8", "t.py"], {}, "dpo-8"),
        ("", ["torchrun", "t.py"], {"PET_RDZV_ID": "pet"}, "pet"),
        ("", ["torchrun", "--rdzv-id=none", "t.py"], {"TORCHELASTIC_RUN_ID": "none"}, "run-1"),
        ("  \n", ["torchrun", "--rdzv-id"], {}, "run-1"),
        ("a\nb", [], {}, "a_b"),
    ],
)
def test_job_is_called_by_what_is_the_same_on_all_its_nodes(
    setting: str, command: list[str], environment: dict[str, str], name: str
) -> None:
    assert job_name(setting, command, environment, "run-1") == name


def test_document_is_what_prometheus_takes_and_names_no_hub_twice() -> None:
    again = Target(HERE.address, "812", "by-another-name")

    told = sd_document([HERE, THERE, again])

    assert [group["targets"] for group in told] == [["10.0.0.7:9095"], ["10.0.0.8:9095"]]
    assert told[0]["labels"] == {"job_id": "812", "node": "gpu-17", "__meta_diag_run_id": HERE.run_id}


def test_https_is_said_where_it_is_used() -> None:
    assert Target("a:1", "j", "n", scheme="https").group()["labels"]["__scheme__"] == "https"


def test_file_tells_of_all_hubs_follows_them_and_goes_with_the_run(tmp_path: Path) -> None:
    known, path = Known(), tmp_path / "diag.json"
    keeper = SdFile(path, known.targets).start()
    becomes(lambda: targets_in(path), [HERE.address])
    readable = stat.S_IMODE(path.stat().st_mode)

    known.now = (HERE, THERE)
    becomes(lambda: targets_in(path), [HERE.address, THERE.address])
    closed = keeper.close(10.0)

    assert readable == 0o644  # Prometheus is another user
    assert closed and list(tmp_path.iterdir()) == []


def test_in_a_directory_each_hub_has_a_file_of_its_own_that_tells_of_it_alone(tmp_path: Path) -> None:
    keepers = [SdFile(tmp_path, Known(now).targets).start() for now in ((HERE, THERE), (THERE, HERE))]
    first, second = tmp_path / "812-gpu-17.json", tmp_path / "812-gpu-18.json"
    becomes(lambda: (targets_in(first), targets_in(second)), ([HERE.address], [THERE.address]))

    keepers[0].close(10.0)

    assert [path.name for path in tmp_path.iterdir()] == ["812-gpu-18.json"]
    keepers[1].close(10.0)


def test_file_of_another_hub_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "diag.json"
    keeper = SdFile(path, Known().targets).start()
    becomes(lambda: targets_in(path), [HERE.address])
    other = tmp_path / "other"
    other.write_text("[]")
    other.replace(path)

    keeper.close(10.0)

    assert path.read_text() == "[]"


@pytest.mark.parametrize(
    "body", ["", "[]", "secret = 1\n", '[{"targets": ["a:1"], "labels": {"job_id": "8"}}]', "[" * 5000]
)
def test_file_that_diag_did_not_write_is_neither_replaced_nor_removed(tmp_path: Path, body: str) -> None:
    said: list[str] = []
    path = tmp_path / "settings.conf"
    path.write_text(body)

    keeper = SdFile(path, Known().targets, said.append).start()
    becomes(lambda: len(said), 1)
    time.sleep(0.2)  # some more tries
    keeper.close(10.0)

    assert path.read_text() == body and list(tmp_path.iterdir()) == [path]
    assert len(said) == 1 and str(path) in said[0] and "was not written by diag" in said[0]


def test_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    said: list[str] = []
    # even where diag wrote what it leads to
    (tmp_path / "mine.json").write_text(json.dumps(sd_document([HERE])))
    (tmp_path / "diag.json").symlink_to("mine.json")

    keeper = SdFile(tmp_path / "diag.json", Known((THERE,)).targets, said.append).start()
    becomes(lambda: len(said), 1)
    keeper.close(10.0)

    assert (tmp_path / "diag.json").is_symlink() and targets_in(tmp_path / "mine.json") == [HERE.address]
    assert "there is a link" in said[0]


def test_file_that_comes_into_its_place_while_it_runs_is_left_alone(tmp_path: Path) -> None:
    known, said, path = Known(), list[str](), tmp_path / "diag.json"
    keeper = SdFile(path, known.targets, said.append).start()
    becomes(lambda: targets_in(path), [HERE.address])
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "mine").replace(path)

    known.now = (HERE, THERE)
    becomes(lambda: len(said), 1)
    keeper.close(10.0)

    assert path.read_text() == "mine"


def test_file_of_a_diag_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "diag.json"
    path.write_text(json.dumps(sd_document([THERE])))

    keeper = SdFile(path, Known().targets).start()
    becomes(lambda: targets_in(path), [HERE.address])
    keeper.close(10.0)

    assert not path.exists()


def test_folder_that_is_not_there_is_told_once_and_used_when_it_comes(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "targets"
    keeper = SdFile(folder / "diag.json", Known().targets, said.append).start()
    becomes(lambda: len(said), 1)

    folder.mkdir()
    becomes(lambda: targets_in(folder / "diag.json"), [HERE.address])
    keeper.close(10.0)

    assert len(said) == 1 and "No such file or directory" in said[0]


def test_file_system_that_does_not_answer_does_not_hold_up_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    class Stuck:
        def targets(self) -> tuple[Target, ...]:
            (tmp_path / "fifo").read_text()  # until somebody writes, as a dead NFS
            return ()

    keeper = SdFile(tmp_path / "diag.json", Stuck().targets).start()

    began = time.monotonic()
    closed = keeper.close(0.2)
    (tmp_path / "fifo").write_text("")

    assert not closed and time.monotonic() - began < 5


def test_names_that_are_no_file_names_stay_in_their_folder(tmp_path: Path) -> None:
    for job in ("../../etc/passwd", ".hidden", "a/b", "日" * 200):
        assert sd_path(tmp_path, job, "n").parent == tmp_path
        assert not sd_path(tmp_path, job, "n").name.startswith(".")


def test_address_of_all_interfaces_is_told_as_one_that_can_be_reached() -> None:
    assert reachable_host("0.0.0.0") not in ("", "0.0.0.0")
    assert reachable_host("::1") == "[::1]"


def test_hub_tells_itself_first_and_then_the_others_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    hub = Hub(Settings(job_id="dpo"), None)
    before = hub.targets()

    hub.address = "127.0.0.1:9095"
    hub.cluster.other_targets = lambda: (THERE,)

    assert before == ()  # nothing to scrape
    assert [(target.address, target.job_id) for target in hub.targets()] == [
        ("127.0.0.1:9095", "dpo"),
        (THERE.address, "812"),
    ]
