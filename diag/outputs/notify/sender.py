"""Sends one message, in a process that ends with it: the services' library is large, and one that does not answer must
not hold up the next message. Reads its task from stdin, prints what each service answered as JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote

from diag import __version__
from diag.outputs.notify.addresses import INSTALL, Address
from diag.outputs.notify.message import Message, compose
from diag.text.sanitize import clean

_REQUEST_SECONDS = 20.0
_ANSWER = 300  # characters of it that are shown


@dataclass(frozen=True, slots=True)
class Answer:
    """What one service made of the message. `again`: it may take the same one later."""

    name: str
    accepted: bool
    text: str
    again: bool = False


def main() -> int:
    task = json.load(sys.stdin)
    found = [Address(url, name) for url, name in task["addresses"]]
    if task.get("check"):
        answers = check(found)
    else:
        answers = send(compose(task["event"], task["lang"]), found)
    json.dump([asdict(answer) for answer in answers], sys.stdout)
    return 0


def check(found: list[Address]) -> list[Answer]:
    """Of the addresses those that the library cannot make sense of. Nothing is sent."""
    wrong = []
    for address in found:
        if not address.plain and isinstance(service := _service(address), str):
            wrong.append(Answer(address.name, False, service))
    return wrong


def send(message: Message, found: list[Address]) -> list[Answer]:
    """To all of them at once."""
    answers: dict[str, Answer] = {}

    def work(address: Address) -> None:
        try:
            answers[address.name] = (_post if address.plain else _through_apprise)(message, address)
        except Exception as error:  # of a library, with any message
            answers[address.name] = Answer(address.name, False, _reason(error), again=True)

    threads = [threading.Thread(target=work, args=(address,), name=address.name) for address in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[address.name] for address in found]


# --- a webhook of the user's own


def _post(message: Message, address: Address) -> Answer:
    request = urllib.request.Request(
        address.url,
        data=json.dumps(message.to_json()).encode(),
        headers={"Content-Type": "application/json", "User-Agent": f"diag/{__version__}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as response:
            return _judged(address, response.status, response.read(4096), True)
    except urllib.error.HTTPError as error:
        return _judged(address, error.code, error.read(4096), False)
    except (OSError, ValueError) as error:
        return Answer(address.name, False, _reason(error), again=True)


# --- all others


def _through_apprise(message: Message, address: Address) -> Answer:
    service = _service(address)
    if isinstance(service, str):
        return Answer(address.name, False, service)
    with _listening() as heard:
        accepted = service.notify(
            title=message.title, body=message.body, notify_type=message.kind, body_format="text"
        )
    if heard.status is not None:
        return _judged(address, heard.status, heard.body, bool(accepted))
    if accepted:
        return Answer(address.name, True, "accepted")
    return Answer(
        address.name, False, address.hidden(clean(heard.error or heard.log or "not sent")), again=True
    )


def _service(address: Address) -> Any:
    """apprise's object for it, or what is wrong with it."""
    try:
        import apprise
    except ImportError:
        return f"the package apprise is not installed: {INSTALL}"
    logging.getLogger("apprise").addHandler(_Kept())
    logging.getLogger("apprise").propagate = False
    asset = apprise.AppriseAsset(
        app_id="diag", app_desc="diag", app_url="", image_url_mask="", image_url_logo=""
    )
    with _listening() as heard:
        service: Any = apprise.Apprise.instantiate(address.for_apprise, asset=asset)
    if service is None:
        why = address.hidden(clean(heard.log))
        return f"the address is not one of this service{f': {why}' if why else ''}"
    if type(service).__name__ == "NotifyDingTalk" and service.secret:
        # apprise 1.9-2.3 encodes DingTalk's signature for a URL, and requests does so again: "310000 sign not match"
        stamp_and_sign = service.get_signature
        service.get_signature = lambda: tuple(map(unquote, stamp_and_sign()))
    return service


@dataclass(slots=True)
class _Heard:
    """What came back in this thread: the last HTTP answer, or why there was none."""

    status: int | None = None
    body: bytes = b""
    error: str = ""
    log: str = ""


_now = threading.local()


class _Kept(logging.Handler):
    """Of what apprise logs, the last line in this thread."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and (heard := getattr(_now, "heard", None)) is not None:
            heard.log = record.getMessage()


@contextmanager
def _listening() -> Iterator[_Heard]:
    """apprise says whether it went well, and of some services not even that: DingTalk and WeCom refuse a message with
    status 200. So the answers are kept where they come in."""
    import requests

    heard = _now.heard = _Heard()
    original: Callable[..., Any] = requests.Session.send
    if original is not _kept_send:
        _original.append(original)  # first: another thread sends as soon as the other is in place
        requests.Session.send = _kept_send  # type: ignore[method-assign]
    try:
        yield heard
    finally:
        _now.heard = None


_original: list[Callable[..., Any]] = []


def _kept_send(self: Any, request: Any, **options: Any) -> Any:
    heard: _Heard | None = getattr(_now, "heard", None)
    try:
        response = _original[0](self, request, **options)
    except Exception as error:
        if heard is not None:
            heard.error = _reason(error)
        raise
    if heard is not None:
        heard.status, heard.body = response.status_code, response.content[:4096]
    return response


# --- what was answered


def _judged(address: Address, status: int, body: bytes, accepted: bool) -> Answer:
    """
    >>> _judged(Address("dingtalk://a", "dingtalk"), 200, b'{"errcode":310000,"errmsg":"keywords not in content"}', True)
    Answer(name='dingtalk', accepted=False, text='refused (HTTP 200): 310000 keywords not in content', again=False)
    """
    words = address.hidden(clean(body.decode("utf-8", "replace")))[:_ANSWER]
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if isinstance(found, dict):
        # errcode: DingTalk, WeCom; code: Feishu, Lark; ok: Slack, Telegram
        code = found.get("errcode") or (found.get("code") if "msg" in found else None)
        said = next(
            (found[name] for name in ("errmsg", "msg", "error", "description") if found.get(name)), ""
        )
        accepted &= not code and found.get("ok") is not False
        if not accepted:
            words = address.hidden(clean(f"{code or ''} {said}".strip()))[:_ANSWER] or words
    if accepted and status < 300:
        return Answer(address.name, True, f"accepted (HTTP {status})")
    again = status >= 500 or status == 429
    return Answer(
        address.name, False, f"refused (HTTP {status})" + (f": {words}" if words.strip() else ""), again
    )


def _reason(error: BaseException | None) -> str:
    """The innermost reason; the messages around it have the address in them."""
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return f"cannot be reached: {error.strerror}"
        inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
        inner = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
        if inner is None:
            return f"cannot be reached: {type(error).__name__}"
        error = inner
    return "cannot be reached"


if __name__ == "__main__":
    sys.exit(main())
