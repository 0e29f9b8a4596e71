"""The manual pages of findings, in English and Chinese: what `diag explain` prints.

A page is the sections of en/ID.md or zh/ID.md. What is not translated yet is shown in English below the Chinese
headings. In "What to do" a list item that begins with causes in backticks (and the class of a hang in brackets)
is the advice for these; those of a hang are in its catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diag.text.compiled import PACKAGE, compiled

LANGUAGES = ("en", "zh")
HEADINGS = {
    "en": ("Meaning", "Evidence", "What to do", "Started again", "False alarms", "See also"),
    "zh": ("含义", "依据", "怎么办", "重新启动", "误报", "参见"),
}
_FOLDER = Path(__file__).parent
# "- `went_down`, `down`: ..." and "- `sigstop` (stopped): ..."; an item that begins otherwise is of no
# cause.
_CAUSES = re.compile(r"- (`[A-Za-z0-9_]+`(?:, `[A-Za-z0-9_]+`)*)(?: \(([a-z_]+(?:, [a-z_]+)*)\))?[:：]")


@dataclass(frozen=True, slots=True)
class Advice:
    """One item of a page's "What to do", which is of these causes (and, of a hang, of these classes); `text`
    is all of it."""

    causes: tuple[str, ...]
    classes: tuple[str, ...]
    text: str

    def is_of(self, word: str) -> bool:
        """Whether `word`, in small letters, is one of its causes or classes; `xid_N` stands for any number."""
        names = (*self.causes, *self.classes)
        return any(
            word == name.lower() or (name.endswith("_N") and re.fullmatch(name[:-1] + r"\d{1,9}", word))
            for name in names
        )


def ids() -> list[str]:
    """Every finding: those of a run in the order in which they are judged, then the others by name."""
    copy = _copy("en")
    return list(copy["ids"]) if copy is not None else _ids()


def _ids() -> list[str]:
    from diag.detectors import DETECTORS

    judged = dict.fromkeys(kind.name for kind in DETECTORS if kind.name in _names("en"))
    return [*judged, *sorted({path.stem for path in (_FOLDER / "en").glob("*.md")} - set(judged))]


@cache
def sections(finding: str, lang: str) -> dict[str, str]:
    """Heading -> text of a page, lines joined to paragraphs and list items; empty where there is no such
    finding."""
    copy = _copy(lang)
    return copy["pages"].get(finding, {}) if copy is not None else _sections(finding, lang)


def _sections(finding: str, lang: str) -> dict[str, str]:
    found = _of(_file(finding, lang), lang)
    if finding in ("hang", "held-up") and found:
        from diag.detectors.hang.catalogue import manual_items

        found[HEADINGS[lang][2]] = "\n".join((found[HEADINGS[lang][2]], *manual_items(lang)))
    if found and (again := _started_again(finding, lang)):
        found[HEADINGS[lang][3]] = again
    if not found and lang != "en":
        english = _sections(finding, "en")
        found = {
            own: english[name]
            for own, name in zip(HEADINGS[lang], HEADINGS["en"], strict=True)
            if name in english
        }
    return {heading: found[heading] for heading in HEADINGS[lang] if heading in found}


def rendered(lang: str) -> dict[str, Any]:
    """All of it, as it is kept with the package."""
    names = _ids()
    return {"ids": names, "pages": {name: _sections(name, lang) for name in names}}


def sources(lang: str) -> list[bytes]:
    """What the pages are made of, code included: that of the order of findings, of hangs, and of starting again."""
    detectors, folders = PACKAGE / "detectors", dict.fromkeys(("en", lang))
    files = [file for folder in folders for file in sorted((_FOLDER / folder).glob("*.md"))]
    files += sorted((detectors / "hang" / "causes").glob("*.yaml"))
    files += [detectors / name for name in ("__init__.py", "retry.yaml", "retry.py", "hang/catalogue.py")]
    files += [_FOLDER.parent / "started_again.py", _FOLDER / "__init__.py"]
    return [file.read_bytes() for file in files]


def copy_of(lang: str) -> str:
    return f"manual.{lang}"


@cache
def _copy(lang: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = compiled(copy_of(lang), sources(lang))
    return found


def _started_again(finding: str, lang: str) -> str:
    from diag.outputs.started_again import started_again  # `diag explain` of a variable needs no table

    return started_again(finding, lang)


def text(finding: str, lang: str) -> str:
    """The page as plain text: "Heading: ..." paragraphs with an empty line between them; "" where there is
    none."""
    colon = "：" if lang == "zh" else ": "
    return "\n\n".join(f"{heading}{colon}{body}" for heading, body in sections(finding, lang).items())


def meaning(finding: str, lang: str) -> str:
    """The first sentence of what it means; "" where there is no page."""
    whole = sections(finding, lang).get(HEADINGS[lang][0], "")
    return whole.partition("。")[0] + "。" if "。" in whole else re.split(r"(?<=\.) |\n", whole)[0]


def causes(finding: str, lang: str) -> list[str]:
    """The causes that the page has advice for, as findings have them in `cause`; `xid_N` stands for any
    number."""
    return [cause for item in advice(finding, lang) for cause in item.causes]


def advice(finding: str, lang: str) -> list[Advice]:
    """The items of a page that are of causes."""
    lines = sections(finding, lang).get(HEADINGS[lang][2], "").splitlines()
    return [
        Advice(
            tuple(re.findall(r"\w+", match[1])),
            tuple(re.findall(r"\w+", match[2] or "")),
            line.removeprefix("- "),
        )
        for line in lines
        if (match := _CAUSES.match(line))
    ]


def _file(finding: str, lang: str) -> str:
    path = _FOLDER / lang / f"{finding}.md"
    # An id comes from the command line: only names of files that lie here are looked up.
    return path.read_text(encoding="utf-8") if finding in _names(lang) else ""


@cache
def _names(lang: str) -> frozenset[str]:
    return frozenset(path.stem for path in (_FOLDER / lang).glob("*.md"))


def _of(page: str, lang: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in page.splitlines():
        heading, colon, rest = line.partition("：" if lang == "zh" else ":")
        if colon and heading in HEADINGS[lang]:
            lines = found.setdefault(heading, [rest.strip()])
        elif not line.strip() or line.startswith("- ") or not lines or not lines[-1]:
            lines.append(line.strip())
        else:  # one paragraph in several lines
            lines[-1] += " " + line.strip()
    return {heading: "\n".join(lines).strip() for heading, lines in found.items()}
