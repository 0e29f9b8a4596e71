"""The pictures of the page in the documentation: there, small, shown somewhere. `make screenshots` takes them
anew."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import Page, expect

from tests.browser.bigjob import RECORDED, many_ranks
from tests.browser.conftest import Opener
from tests.browser.pages import PHONE, served
from tests.browser.parts import cell, panel, ready

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
# Name and CSS pixels; what goes beyond the first screen is left out. The phone's is taken at two pixels each.
PICTURES = {
    "page-hang-light": (1280, 900),
    "page-hang-dark": (1280, 900),
    "page-1024": (1280, 900),
    "page-phone": (PHONE["width"], PHONE["height"]),
}
_LARGEST = 300_000
CULPRIT = 517

pytestmark = [pytest.mark.xdist_group("browser-recorded"), pytest.mark.timeout(240)]
wanted = pytest.mark.skipif("PICTURES" not in os.environ, reason="make screenshots takes them")


@pytest.fixture(scope="module")
def recorded(browser: Any) -> Iterator[str]:
    with served(Path(RECORDED.name), cwd=RECORDED.parent) as url:  # the page shows the path that was given
        yield url


def taken(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.evaluate("document.fonts.ready")
    page.wait_for_function(
        "document.querySelectorAll('canvas').length > 0 || document.querySelectorAll('svg').length > 0"
    )
    IMAGES.mkdir(exist_ok=True)
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="hide")


@wanted
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_of_a_hang(recorded: str, opener: Opener, scheme: str) -> None:
    page = opener(recorded, color_scheme=scheme, timezone_id="UTC").open()
    ready(page, "The job is held-up")
    expect(cell(page, 2, "delaying")).to_be_visible()

    taken(page, f"page-hang-{scheme}")


@wanted
def test_picture_on_a_phone(recorded: str, opener: Opener) -> None:
    page = opener(recorded, viewport=PHONE, device_scale_factor=2, is_mobile=True, timezone_id="UTC").open()
    ready(page, "The job is held-up")

    taken(page, "page-phone")


@wanted
def test_picture_of_a_thousand_ranks(tmp_path: Path, opener: Opener) -> None:
    many_ranks(tmp_path / "hang-of-1024-ranks", 128, CULPRIT)
    with served(Path("hang-of-1024-ranks"), cwd=tmp_path) as url:
        page = opener(url, timezone_id="UTC").open()
        ready(page, "The job is held-up")
        cell(page, CULPRIT, "delaying").click()
        expect(panel(page, CULPRIT).get_by_role("region", name=f"Stacks of rank {CULPRIT}")).to_contain_text(
            "_try_get_data"
        )
        page.locator("#ranks").evaluate("one => one.scrollIntoView({block: 'start'})")

        taken(page, "page-1024")
        page.close()


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_there_small_and_shown_in_the_documentation(name: str) -> None:
    path = IMAGES / f"{name}.png"
    data = path.read_bytes()
    texts = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]

    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) < _LARGEST
    width, height = struct.unpack(">II", data[16:24])
    scale = 2 if name == "page-phone" else 1
    assert (width, height) == tuple(scale * side for side in PICTURES[name])
    assert any(f"images/{name}.png" in text.read_text(encoding="utf-8") for text in texts), (
        f"nothing shows {path.name}"
    )
