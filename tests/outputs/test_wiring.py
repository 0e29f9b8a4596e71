"""All outputs of a run behind one door: each is told, and one that fails harms nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.agent.hub import Hub
from diag.launch.rundir import RunDir
from diag.model import Change, ChangeKind
from diag.outputs.output import Output, OutputContext
from diag.outputs.wiring import OUTPUTS, Outputs
from diag.settings import load
from diag.sources.host import run as run_source


class Broken(Output):
    """Fails at each step of a run."""

    def start(self) -> None:
        raise ValueError("start")

    publish = change = close = start  # type: ignore[assignment]


class Kept(Output):
    def __init__(self, run: OutputContext) -> None:
        super().__init__(run)
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def publish(self) -> None:
        self.calls.append(("publish", [*self.run.words], self.run.pid))

    def change(self, change: Change) -> None:
        self.calls.append(change.kind)

    def close(self, returncode: int | None, *, ended: bool) -> None:
        self.calls.append(("close", returncode, ended))


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    run_dir, _ = RunDir.create(tmp_path)
    return Hub(load(run_root=tmp_path, http=False), run_dir)


def opened(kit: Any) -> Change:
    return Change(ChangeKind.OPENED, kit.finding(), 1040.0, 1040.0)


def test_each_output_is_called_from_the_start_to_the_end(hub: Hub, kit: Any) -> None:
    outputs = Outputs(OutputContext(hub, lambda text: None), (Kept,))
    (kept,) = outputs._open
    assert isinstance(kept, Kept)

    outputs.start((), 1)
    outputs.name_job(["train.py"], 7)
    hub.on_change(opened(kit))
    outputs.close(3)

    assert kept.calls == [
        "start", ("publish", [], 1), ("publish", ["train.py"], 7), ChangeKind.OPENED, ("close", 3, True),
    ]  # fmt: skip


def test_one_that_fails_says_so_once_and_the_others_go_on(hub: Hub, kit: Any) -> None:
    said: list[str] = []
    outputs = Outputs(OutputContext(hub, said.append), (Broken, Kept, Broken))
    kept = outputs._open[1]
    assert isinstance(kept, Kept)

    outputs.start((), 1)
    hub.on_change(opened(kit))
    outputs.close(0)

    assert len(kept.calls) == 4
    assert len(said) == 2 and all("the output Broken fails: ValueError: start" in line for line in said)


def test_run_directory_has_what_a_run_promises_and_the_terminal_the_finding(hub: Hub, kit: Any) -> None:
    said: list[str] = []
    outputs = Outputs(OutputContext(hub, said.append))
    outputs.start(["train.py"], 1)

    hub.on_change(opened(kit))
    outputs.close(None)

    assert hub.run_dir is not None
    (line,) = (hub.run_dir.path / "findings.jsonl").read_text().splitlines()
    run = json.loads((hub.run_dir.path / "run.json").read_text())
    assert json.loads(line)["change"] == "opened"
    assert (run["argv"], run["ended"], run["returncode"]) == (["train.py"], True, None)
    assert len(said) == 1 and kit.finding().id in said[0]
    assert f"run directory {hub.run_dir.path}" in outputs.places


def test_without_a_run_directory_and_a_page_the_terminal_is_left(tmp_path: Path) -> None:
    hub = Hub(load(run_root=tmp_path, http=False), None)
    outputs = Outputs(OutputContext(hub, lambda text: None))

    assert [type(output).__name__ for output in outputs._open] == ["Terminal"]
    assert outputs.places == "" and len(OUTPUTS) > 4


def test_cmd_that_goes_on_without_diag_has_not_ended(hub: Hub) -> None:
    outputs = Outputs(OutputContext(hub, lambda text: None))
    outputs.start(["train.py"], 1)

    outputs.close(None, ended=False)

    assert hub.run_dir is not None
    assert json.loads((hub.run_dir.path / "run.json").read_text())["ended"] is False


@pytest.mark.parametrize(
    ("lang", "line"),
    [
        ("en", "diag: evidence of hang is kept (2 KiB): diag replay '/runs/a b/e.tar.gz'"),
        ("zh", "diag: hang 的证据已留存（2 KiB）：diag replay '/runs/a b/e.tar.gz'"),
    ],
)
def test_bundle_that_was_kept_is_named_in_the_terminal_and_in_run_json(
    hub: Hub, lang: str, line: str
) -> None:
    said: list[str] = []
    outputs = Outputs(OutputContext(hub, said.append, lang=lang))
    outputs.start(["train.py"], 1)
    assert hub.run_dir is not None
    before = json.loads((hub.run_dir.path / "run.json").read_text())

    hub.put(run_source.evidence_kept([("hang", "job")], "/runs/a b/e.tar.gz", 2048, 3.0, "n"))
    hub.settle(10, lambda: bool(said))
    outputs.close(0)

    assert said == [line]
    after = json.loads((hub.run_dir.path / "run.json").read_text())
    assert ("evidence" in before, after["evidence"]) == (False, ["/runs/a b/e.tar.gz"])
