"""In which language people are spoken to: the setting `lang`, else the locale. JSON, logs and metrics are
English always."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

CHINESE = "中文"  # what a stream has to be able to show


def language_of(setting: str, environment: Mapping[str, str]) -> str:
    """en or zh. An empty setting is the locale's, looked up in the order of gettext.

    >>> language_of("", {"LANG": "zh_CN.UTF-8"}), language_of("", {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"})
    ('zh', 'en')
    >>> language_of("", {"LANGUAGE": "zh_CN:en", "LANG": "en_US.UTF-8"}), language_of("en", {"LANG": "zh_CN.UTF-8"})
    ('zh', 'en')
    """
    if setting:
        return setting
    locale = next(filter(None, map(environment.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    if locale.partition(".")[0] in ("", "C", "POSIX"):  # gettext then takes no notice of LANGUAGE
        return "en"
    preferred = (word for word in environment.get("LANGUAGE", "").split(":") if word[:2] in ("en", "zh"))
    return "zh" if next(preferred, locale).startswith("zh") else "en"


def language_for(stream: TextIO | None, setting: str) -> str:
    """The same for lines on this stream: Chinese only where its encoding has it."""
    lang = language_of(setting, os.environ)
    return lang if lang == "en" or can_show(CHINESE, stream) else "en"


def can_show(text: str, stream: TextIO | None) -> bool:
    """Whether the stream's encoding has these characters.

    >>> import io
    >>> can_show("卡死", io.TextIOWrapper(io.BytesIO(), "ascii")), can_show("卡死", io.TextIOWrapper(io.BytesIO(), "gbk"))
    (False, True)
    """
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
