"""Where messages go: the setting `notify` taken apart, and of each address what may be shown of it.

An address is a secret as it is: whoever has one can write there. Nothing here puts one into a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from diag.text.errors import DiagError

INSTALL = "pip install 'diag[notify]'"
_MOST_BYTES = 64 << 10  # of a file of addresses
_FEWEST = 4  # characters: shorter parts of an address are words such as `bot`
# The address that the service itself shows when a bot is made, and the one by which apprise 2.3 knows it. It takes those
# of Slack, Lark, WeCom, Discord and ntfy.sh as they are.
_NATIVE = re.compile(
    r"https://(?:hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/|open\.larksuite\.com/open-apis/bot/v2/hook/"
    r"|qyapi\.weixin\.qq\.com/cgi-bin/webhook/send|discord(?:app)?\.com/api/webhooks/|ntfy\.sh/)",
    re.IGNORECASE,
)
_FEISHU = re.compile(r"https://open\.feishu\.cn/open-apis/bot/v2/hook/([\w-]+)/?", re.IGNORECASE)
_DINGTALK = re.compile(r"https://oapi\.dingtalk\.com/robot/send", re.IGNORECASE)
_HOSTS = {
    "hooks.slack.com": "slack",
    "hooks.slack-gov.com": "slack",
    "open.larksuite.com": "lark",
    "open.feishu.cn": "feishu",
    "oapi.dingtalk.com": "dingtalk",
    "qyapi.weixin.qq.com": "wecom",
    "discord.com": "discord",
    "discordapp.com": "discord",
    "ntfy.sh": "ntfy",
}
_SCHEMES = {
    "tgram": "telegram", "wecombot": "wecom", "ntfys": "ntfy", "mailto": "e-mail", "mailtos": "e-mail",
    "http": "webhook", "https": "webhook", "json": "webhook", "jsons": "webhook",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Address:
    """One place to write to. `name` may be shown: the service, and of several of it which."""

    url: str
    name: str

    def __repr__(self) -> str:
        return f"Address({self.name})"

    @property
    def plain(self) -> bool:
        """A webhook of the user's own, which gets diag's JSON; no library is needed for it."""
        return urlsplit(self.url).scheme.lower() in ("http", "https") and _native(self.url) is None

    @property
    def for_apprise(self) -> str:
        return _native(self.url) or self.url

    def hidden(self, text: str) -> str:
        """The text with every part of the address as ***."""
        for part in sorted(_parts(self.url), key=len, reverse=True):
            text = text.replace(part, "***")
        return text


def addresses(setting: str) -> list[Address]:
    """Those of the setting `notify`: addresses, and `@FILE` for a file with one a line, between blanks. Raises DiagError,
    which names no address."""
    urls: dict[str, None] = {}
    for word in setting.split():
        urls.update(dict.fromkeys(_of_file(Path(word[1:])) if word.startswith("@") else [word]))
    kinds = [_kind(url) for url in urls]
    found = []
    for index, (url, kind) in enumerate(zip(urls, kinds, strict=True)):
        if not kind:
            raise DiagError(
                f"address {index + 1} of `notify` is none: it does not begin with a service, as slack:// does",
                hint="docs/howto/notify.md lists the forms",
                exit_code=2,
            )
        number = kinds[: index + 1].count(kind)
        found.append(Address(url, f"{kind} {number}" if kinds.count(kind) > 1 else kind))
    return found


def lacking(found: Iterable[Address]) -> str:
    """The line on what has to be installed for these; empty where nothing has.

    >>> lacking([Address("https://alerts.example.com/diag", "webhook")])
    ''
    """
    names = [address.name for address in found if not address.plain]
    if not names or find_spec("apprise") is not None:
        return ""
    return f"no message can go to {', '.join(names)}: the package apprise is not installed; {INSTALL}"


def _of_file(path: Path) -> list[str]:
    try:
        with path.expanduser().open(encoding="utf-8") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise DiagError(
            f"the addresses in {path} cannot be read: {reason}", hint="notify, DIAG_NOTIFY", exit_code=2
        ) from None
    return [word for line in lines if not line.lstrip().startswith("#") for word in line.split()]


def _kind(url: str) -> str:
    """
    >>> _kind("https://hooks.slack.com/services/T/B/x"), _kind("tgram://1:a/2"), _kind("https://example.com"), _kind("x")
    ('slack', 'telegram', 'webhook', '')
    """
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9.+-]*", scheme, re.IGNORECASE):
        return ""
    scheme = scheme.lower()
    if scheme == "https" and _native(url) is not None:
        return _HOSTS.get((urlsplit(url).hostname or "").lower(), "webhook")
    return _SCHEMES.get(scheme, scheme)


def _native(url: str) -> str | None:
    """An address as the service shows it, as apprise takes it; None for any other.

    >>> _native("https://open.feishu.cn/open-apis/bot/v2/hook/ab-c")
    'feishu://ab-c'
    >>> _native("https://oapi.dingtalk.com/robot/send?access_token=abc&secret=SECd")
    'dingtalk://SECd@abc'
    """
    if found := _FEISHU.fullmatch(url):
        return f"feishu://{found[1]}"
    if _DINGTALK.match(url):
        asked = parse_qs(urlsplit(url).query)
        token, secret = (asked.get(name, [""])[0] for name in ("access_token", "secret"))
        return f"dingtalk://{f'{secret}@' if secret else ''}{token}" if token else None
    return url if _NATIVE.match(url) else None


def _parts(url: str) -> set[str]:
    split = urlsplit(url)
    words = [url, split.username or "", split.password or "", *split.path.split("/")]
    words += [value for values in parse_qs(split.query).values() for value in values]
    if split.scheme.lower() not in ("http", "https", "json", "jsons", "mailto", "mailtos"):
        words.append(split.netloc.rpartition("@")[2])  # the first part of the key, and no host
    return {part for word in words for part in (word, unquote(word)) if len(part) >= _FEWEST}
