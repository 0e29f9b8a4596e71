"""The screen's words in the language of who looks: English, or Chinese as far as there is any."""

from __future__ import annotations


class _Tongue:
    lang = "en"


def speak(lang: str) -> None:
    """From now on in this language: one screen a process."""
    _Tongue.lang = lang


def say(text: str) -> str:
    """A text of the screen, with its values, in that language."""
    if _Tongue.lang == "en" or not text.strip():
        return text
    from diag.outputs.chinese import in_chinese

    bare = text.strip()
    lead = text[: len(text) - len(text.lstrip())]
    return lead + in_chinese(bare, "top") + text[len(lead) + len(bare) :]


def told(text: str) -> str:
    """A sentence of a finding or of the job, which other faces show too."""
    if _Tongue.lang == "en":
        return text
    from diag.outputs.chinese import in_chinese

    return in_chinese(text)
