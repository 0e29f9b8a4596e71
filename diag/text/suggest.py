"""What a person may have meant by a wrong word: the nearest of the words that there are, as a hint. Imported
on errors only."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

_SCHEMES = ("http", "https", "ftp", "s3", "gs", "oss", "hdfs")
_MOST = 3  # names shown
_AS_GOOD = 0.1  # of likeness (0 to 1): a word that much further away than the best one is not shown
_MOST_FILES = 5000  # names of a folder, or of PATH, that are compared


def near(wrong: str, words: Iterable[str], most: int = _MOST, cutoff: float = 0.6) -> list[str]:
    """The nearest words, best first; none where none is near: `cutoff` is the least likeness, from 0 to 1.

    >>> near("dmup", ["run", "dump", "doctor"]), near("xyzzy", ["run", "dump"])
    (['dump'], [])
    """
    known = list(dict.fromkeys(words))
    found = difflib.get_close_matches(wrong, known, n=most, cutoff=cutoff)
    if found:
        likeness = [difflib.SequenceMatcher(None, wrong, word).ratio() for word in found]
        found = [word for word, ratio in zip(found, likeness, strict=True) if ratio >= likeness[0] - _AS_GOOD]
    if not found and len(wrong) >= 3:  # `doc` for `doctor`
        found = [word for word in known if word.startswith(wrong)][:most]
    return found


def did_you_mean(wrong: str, words: Iterable[str], form: str = "{}") -> str:
    """The question for a hint, empty where nothing is near; `form` says how a word is shown.

    >>> did_you_mean("hnag", ["hang", "slow"], "diag explain {}")
    'did you mean diag explain hang?'
    """
    return _question([form.format(word) for word in near(wrong, words)])


def _question(found: list[str]) -> str:
    return f"did you mean {' or '.join(filter(None, [', '.join(found[:-1]), found[-1]]))}?" if found else ""


def address_of(path: Path) -> str:
    """The address that was given for a path, which has lost a slash; empty where it is none.

    >>> address_of(Path("https://host/train.log"))
    'https://host/train.log'
    """
    scheme, colon, rest = str(path).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if colon and scheme.lower() in _SCHEMES else ""


def file_beside(path: Path) -> str:
    """Of a path that does not exist: what lies beside it, or beside the part of it that does not exist, under
    a near name."""
    missing = path
    try:
        while missing.parent != missing and not missing.parent.is_dir():
            missing = missing.parent
        names = [entry.name for entry, _ in zip(os.scandir(missing.parent), range(_MOST_FILES), strict=False)]
    except OSError:
        return ""
    if found := near(missing.name, names):
        return _question([str(missing.parent / name) for name in found])
    return "" if missing == path else f"there is no {missing} either"


def command_in_path(wrong: str, folders: str) -> str:
    """The nearest command of these folders, which are separated as in PATH; empty where none is near."""
    names: list[str] = []
    for folder in folders.split(os.pathsep):
        try:
            names += [name for name in os.listdir(folder or ".") if len(name) <= 2 * len(wrong)][:_MOST_FILES]
        except OSError:
            continue
    found = difflib.get_close_matches(wrong, dict.fromkeys(names), n=1, cutoff=0.8)
    return found[0] if found else ""
