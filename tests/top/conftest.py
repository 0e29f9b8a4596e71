"""What tests of `diag top` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diag.cli.tui.words import speak


@pytest.fixture(autouse=True)
def speaks_english_again() -> Iterator[None]:
    """One screen a process speaks one language: tests are many screens."""
    yield
    speak("en")
