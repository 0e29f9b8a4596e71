"""The virtual machine, started once for all tests of this folder that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm import image, machine

_SECONDS = 2400.0  # some eight minutes, where nobody else uses the cores
_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> machine.Answers:
    reason = image.why_not()
    if reason:
        pytest.skip(reason)
    made = image.image()
    folder: Path = tmp_path_factory.mktemp("vm")
    suites = sorted(
        {item.path.parent.name for item in request.session.items if item.path.parent.parent == _HERE}
    )
    said = machine.run(made, folder, _SECONDS, suites)
    built = "was there" if made.build_seconds is None else f"built in {made.build_seconds:.0f} s"
    parts = ", ".join(f"{name} {answer['seconds']:.0f}" for name, answer in said.parts.items())
    print(f"\nimage {built}; machine {said.seconds:.0f} s, with it: {parts}")
    return said
