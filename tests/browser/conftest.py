"""One Chromium a module, a context of its own for each page; a page's troubles fail the test that opened it.

Playwright's loop lives in the thread of the tests: it ends with the module, so that tests of other folders
may have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.bigjob import RECORDED
from tests.browser.pages import Watched, served, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Opener = Callable[..., Watched]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=10_000)
    with sync_playwright() as playwright, started(playwright) as browser:
        yield browser


@pytest.fixture
def opener(browser: Browser) -> Iterator[Opener]:
    """`opener(url, **context)` makes a page that is not opened yet; `context` is playwright's (viewport,
    colour scheme, ...)."""
    made: list[tuple[Any, Watched]] = []

    def make(url: str, **context: Any) -> Watched:
        context.setdefault("viewport", {"width": 1280, "height": 900})
        context.setdefault("reduced_motion", "reduce")
        context.setdefault("locale", "en-US")
        space = browser.new_context(**context)
        if not url.startswith("file:"):
            space.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        space.set_default_timeout(10_000)
        watched = Watched(space.new_page(), url)
        made.append((space, watched))
        return watched

    yield make
    troubles = []
    for space, watched in made:
        try:
            watched.check()
        except AssertionError as error:
            troubles.append(str(error))
        space.close()
    assert not troubles, "\n".join(troubles)


@pytest.fixture(scope="module")
def recorded_hang() -> Iterator[str]:
    """The address of the recorded hang of four ranks on H200s."""
    with served(RECORDED) as url:
        yield url
