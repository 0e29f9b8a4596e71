"""The setting `feed` taken apart: NAME or NAME:OPTION=VALUE,..., with blanks between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diag.outputs.feeds import kubernetes, nvrx, nvsentinel, slurm, trainjob
from diag.outputs.feeds.feed import Environment, Feed, Options
from diag.text.errors import DiagError

FEEDS: tuple[Feed, ...] = (kubernetes.FEED, trainjob.FEED, nvsentinel.FEED, nvrx.FEED, slurm.FEED)


@dataclass(frozen=True, slots=True)
class Chosen:
    word: str  # as it was given
    feed: Feed
    options: Options

    def lacking(self, environment: Environment, *, typed: bool) -> str:
        """The line on why nothing will be sent; empty where it can. `typed`: on the command line, where alone a controller
        may be let act, as `--on` diag."""
        why = self.feed.lacking(self.options, environment)
        if not typed and self.feed.acts(self.options):
            why = f"a controller may act on it, so only the command line can choose it: --feed {self.word}"
        return f"nothing goes to the feed {self.feed.name}: {why}" if why else ""


def chosen(setting: str) -> list[Chosen]:
    """Raises DiagError.

    >>> [(one.feed.name, one.options) for one in chosen("kubernetes nvrx:dir=/shared/health")]
    [('kubernetes', {}), ('nvrx', {'dir': '/shared/health'})]
    """
    return [_chosen(word) for word in dict.fromkeys(setting.split())]


def _chosen(word: str) -> Chosen:
    name, _, rest = word.partition(":")
    feed = next((one for one in FEEDS if one.name == name), None)
    if feed is None:
        names = ", ".join(one.name for one in FEEDS)
        raise DiagError(f"there is no feed {name}", hint=f"feeds: {names}", exit_code=2)
    options: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in feed.options or not equals:
            raise DiagError(
                f"the feed {name} has no option {part}",
                hint=f"its options: {_listed(feed.options)}",
                exit_code=2,
            )
        options[key] = value
    return Chosen(word, feed, options)


def _listed(options: Sequence[str]) -> str:
    return ", ".join(f"{name}=..." for name in options) or "none"
