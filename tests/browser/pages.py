"""Pages that tell what went wrong in them, and servers of recorded evidence for them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.liverun import DIAG

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Playwright, Request, Response

__all__ = ["CHROMIUM", "PHONE", "Watched", "served", "started"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = Path(__file__).parents[2]
PHONE = {"width": 390, "height": 844}
_ADDRESS = re.compile(r"page (http://\S+?)[ ;,\n]")
# Said by the page as it starts, so that what the policy refused is known even where the console does not
# tell.
_LISTEN = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""


@contextlib.contextmanager
def started(playwright: Playwright) -> Iterator[Browser]:
    """Chromium of the system: playwright's own cannot be had everywhere. Root has no sandbox to give it."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (make test installs it as root)")
    browser = playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
    )
    try:
        yield browser
    finally:
        browser.close()


@contextlib.contextmanager
def served(path: Path, *, cwd: Path | None = None) -> Iterator[str]:
    """The address of `diag replay PATH --serve`, started in `cwd`."""
    command = [*DIAG, "replay", str(path), "--serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment
    )
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            found = _ADDRESS.search(line)
            if found:
                yield found[1]
                return
        raise AssertionError(f"diag replay --serve told no address: {said}")
    finally:
        process.terminate()
        process.wait(10)
        if process.stderr is not None:
            process.stderr.close()


class Watched:
    """A page of which every error is kept in `troubles`: of the console, of scripts, of requests, of the
    policy, of dialogs.

    Requests that fail by intent are taken out by the test that means them, with `forgive`.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.troubles: list[str] = []
        self._host = urlsplit(url).netloc
        page.add_init_script(_LISTEN)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"error in the page: {error}"))
        page.on("request", self._request)
        page.on("requestfailed", self._failed)
        page.on("response", self._response)
        page.on("dialog", self._dialog)
        page.on("crash", lambda _: self.troubles.append("the page crashed"))

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.url + path, wait_until="domcontentloaded")
        return self.page

    def forgive(self, pattern: str) -> list[str]:
        """Take out the troubles that match; returns them."""
        found = [trouble for trouble in self.troubles if re.search(pattern, trouble)]
        self.troubles = [trouble for trouble in self.troubles if trouble not in found]
        return found

    def check(self) -> None:
        """AssertionError with all troubles, if there are any."""
        with contextlib.suppress(Exception):  # a page that was closed has told them before
            self.troubles += [f"policy: {told}" for told in self.page.evaluate("window.__violations || []")]
        assert not self.troubles, "\n".join(self.troubles)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.troubles.append(
                f"console {message.type}: {message.text} ({message.location.get('url', '')})"
            )

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self._host:
            self.troubles.append(f"asked another host: {request.url[:200]}")

    def _failed(self, request: Request) -> None:
        # A stream and what is still under way end with the page that reads them.
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"request failed: {request.url[:200]}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.troubles.append(f"answer {response.status}: {response.url[:200]}")

    def _dialog(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message!r}")
        dialog.dismiss()
