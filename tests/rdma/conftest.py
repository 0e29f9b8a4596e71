"""The virtual machine, started once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rdma import image, machine

_SECONDS = 900.0  # two minutes on two idle cores


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> machine.Answers:
    reason = image.why_not()
    if reason:
        pytest.skip(reason)
    made = image.image()
    folder: Path = tmp_path_factory.mktemp("rdma")
    said = machine.run(made, folder, _SECONDS)
    built = "was there" if made.build_seconds is None else f"built in {made.build_seconds:.0f} s"
    parts = ", ".join(f"{name} {answer['seconds']:.0f}" for name, answer in said.parts.items())
    print(f"\nimage {built}; machine {said.seconds:.0f} s, with it: {parts}")
    return said
