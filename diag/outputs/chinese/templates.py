"""English templates and their Chinese, and which of them a finished sentence was made of.

A template is literal text with places ({ranks}) and pairs of words ([is|are]); the name of a place says what it may
hold (`values`). A place {clause} holds what has a template itself. A sentence is looked up whole, then at the borders
of its sentences and clauses. RE2 matches in linear time; a budget bounds how many templates one text may try.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import re2

from diag.outputs.chinese.values import ANYTHING, CLAUSE, COUNT, LOOSE, SILENT, Kind, kind_of, lost, stem
from diag.text.columns import char_columns

_CHINESE = re.compile("[\u4e00-\u9fff]")
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
# A place of a table that code fills (diag.text.tables): what is read of its value, and how it is written.
_FORMATTED = re.compile(r"\{([A-Za-z_][\w.\[\]]*)(?:![rsa])?(?::([^{} ]*)[^{}]*)?\}")
_AFTER_MARK = re.compile(r"(?<=[，。；：、]) +")
_SPACED = re.compile(r"( ?)\{([A-Za-z_]\w*)\}( ?)")  # no space beside a Chinese character or mark
_TOKEN = re.compile(r"\{[A-Za-z_]\w*\}|\[[^|\[\]]*\|[^|\[\]]*\]")
_LONGEST = 4000  # characters of a text that is looked up
_DEEPEST = 20
_TRIES = 6000  # templates for one text
_SHORTEST_TAIL = 8  # characters: " in phase "
_MOST_KEPT = 4096  # texts whose Chinese is remembered
_BORDERS = ((". ", "。"), ("; ", "；"))  # of sentences, of clauses
_OPENS, _CLOSES = "([{", ")]}"

Translate = Callable[[str], "str | None"]


def places(template: str) -> list[str]:
    return _PLACE.findall(template)


def plain_places(template: str) -> str:
    """
    >>> plain_places("{ranks:count rank} of {launch.nodes}, {hosts.bad!r}")
    '{ranks_count} of {launch_nodes}, {hosts_bad}'
    """

    def named(place: re.Match[str]) -> str:
        read = f"{place[1]} {place[2] or ''}"  # one value in two formats is two texts
        return f"{{{re.sub(r'[^A-Za-z0-9_]+', '_', read).strip('_')}}}"

    return _FORMATTED.sub(named, template).replace("{{", "{").replace("}}", "}")


class Template:
    """One template and its Chinese."""

    def __init__(self, english: str, chinese: str, *, of_rule: bool = False, loose: bool = False) -> None:
        self.english, self.chinese, self._of_rule, self._loose = english, chinese, of_rule, loose
        self.literals = [part for part in _TOKEN.split(english) if part]
        self.anchor = max(self.literals, key=len, default="")
        self.size = sum(map(len, self.literals))
        self.holds_more = any(
            self._kind(name).pattern == ANYTHING.pattern for name in places(english) if stem(name) != CLAUSE
        )
        # When or where something was, behind any sentence: another template's last place would take it in.
        self.is_tail = self.size >= _SHORTEST_TAIL and english.startswith(f"{{{CLAUSE}}} ")
        self._patterns: list[tuple[re.Pattern[str], list[str]]] | None = None

    def fill(self, text: str, translate: Translate) -> str | None:
        """The Chinese, where the text is one of this template and all its values have theirs."""
        for pattern, names in self._compiled():
            match = pattern.fullmatch(text)
            if match is None:
                return None
            filled = self._filled(names, match.groups(), translate)
            if filled is not None:
                return filled
        return None

    def _filled(self, names: list[str], given: tuple[str, ...], translate: Translate) -> str | None:
        values: dict[str, str] = {}
        for name, value in zip(names, given, strict=True):
            kind = self._kind(name)
            own = translate(value) if stem(name) == CLAUSE or kind is LOOSE else kind.render(value)
            if kind is LOOSE and (own is None or not _CHINESE.search(own)):
                own = value  # also where only its marks would be others: it may be code
            if own is None or values.setdefault(name, own) != own:
                return None

        def put(place: re.Match[str]) -> str:
            value = values.get(place[2], place[2])
            before = "" if is_wide(value[:1]) else place[1]
            return before + value + ("" if is_wide(value[-1:]) else place[3])

        return _SPACED.sub(put, self.chinese)

    def _kind(self, place: str) -> Kind:
        """The names in a rule are of groups of its regex: they may hold anything."""
        if self._loose:
            return kind_of(place) if stem(place) in (COUNT, CLAUSE) else LOOSE
        return ANYTHING if self._of_rule and stem(place) != "who" else kind_of(place)

    def _compiled(self) -> list[tuple[re.Pattern[str], list[str]]]:
        """The shortest values first; where a clause has no Chinese so, the longest."""
        if self._patterns is None:
            names = places(self.english)
            greedy = any(stem(name) == CLAUSE for name in names) and len(names) > 1
            self._patterns = [(self._pattern(lazy), names) for lazy in ("?", "")[: 2 if greedy else 1]]
        return self._patterns

    def _pattern(self, lazy: str) -> re.Pattern[str]:
        parts, at = [], 0
        for token in _TOKEN.finditer(self.english):
            parts.append(re2.escape(self.english[at : token.start()]))
            if token[0].startswith("{"):
                kind = self._kind(token[0][1:-1])
                parts.append(f"({kind.pattern}{lazy if kind.open_ended else ''})")
            else:
                parts.append(f"(?:{'|'.join(map(re2.escape, token[0][1:-1].split('|')))})")
            at = token.end()
        compiled: re.Pattern[str] = re2.compile(f"(?s){''.join(parts)}{re2.escape(self.english[at:])}")
        return compiled


class Catalogue:
    """Templates, what follows any sentence first, then those with most literal text.

    `loose`: English is a table's own text, the names of its places say nothing of what they hold, and a value is shown
    in Chinese where it has any. `beyond`: asked for what has no entry here."""

    def __init__(self, *, loose: bool = False, beyond: Catalogue | None = None) -> None:
        self._loose, self._beyond = loose, beyond
        self.templates: dict[str, Template] = {}
        self._ordered: list[Template] = []
        self._known: dict[str, str | None] = {}
        self._lock = threading.RLock()
        self._failed: set[str] = set()  # of the text that is translated now

    def add(self, english: str, chinese: str, *, of_rule: bool = False) -> None:
        """Of several sentences or clauses that Chinese has as many of, each is one by itself too: advice may be shown
        without some of them. What would lose a value is left out. `of_rule`: its places may hold anything."""
        english, chinese = " ".join(english.split()), _AFTER_MARK.sub("", chinese.strip())
        if self._loose:
            english, chinese = plain_places(english), plain_places(chinese)
        for mark, own in _BORDERS:
            parts, others = list(split(english, mark)), [part for part in chinese.split(own) if part.strip()]
            if len(parts) == len(others) > 1:
                for part, other in zip(parts, others, strict=True):
                    self.add(part, other, of_rule=of_rule)
        english, chinese = _lowered(_bare(english)), chinese.removesuffix("。")
        needed = {name for name in places(english) if self._loose or stem(name) not in SILENT}
        if needed == set(places(chinese)) and not _PLACE.fullmatch(english):
            one = Template(english, chinese, of_rule=of_rule, loose=self._loose)
            self.templates.setdefault(english, one)
            self._ordered, self._known = [], {}

    def translate(self, text: str) -> str | None:
        """All of the text in Chinese; None where a part has no entry."""
        with self._lock:  # a hub speaks from several threads
            if not self._ordered:
                self._ordered = sorted(self.templates.values(), key=lambda one: (not one.is_tail, -one.size))
            self._failed.clear()
            found = self._whole(text, 0, iter(range(_TRIES)))
        return found if found is None or not lost(text, found) else None

    def by_sentence(self, text: str) -> str:
        """In Chinese sentence by sentence, English where one has no entry."""
        parts = list(split(text, ". "))
        if len(parts) == 1:
            return self.translate(text) or text
        ended = [part if part.endswith(".") or last else f"{part}." for part, last in _with_last(parts)]
        shown = ""
        for part in ended:
            one = self.translate(part) or part
            shown += (" " if shown and not shown.endswith("。") else "") + one
        return shown

    def _whole(self, text: str, depth: int, tries: Iterator[int]) -> str | None:
        if depth > _DEEPEST or len(text) > _LONGEST or not text.strip() or text in self._failed:
            return None
        if text not in self._known:
            found = self._looked_up(text, depth, tries)
            if found is None and (
                depth or next(tries, None) is None
            ):  # it may be for the limits, not the text
                self._failed.add(text)
                return None
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[text] = found
        return self._known[text]

    def _looked_up(self, text: str, depth: int, tries: Iterator[int]) -> str | None:
        def deeper(value: str) -> str | None:
            return self._whole(value, depth + 1, tries)

        bare = _bare(text)
        stop = "。" if len(bare) < len(text) else ""
        if self._beyond is not None and _lowered(bare) in self._beyond.templates:  # word for word
            found = self._beyond.translate(bare)
            return found if found is None else found + stop
        for mark, own in _BORDERS:
            parts = list(split(bare, mark))
            if len(parts) > 1:
                found = self._filled(bare, mark, deeper, tries)
                if found is None:
                    shown = [deeper(part) for part in parts]
                    found = None if None in shown else own.join(filter(None, shown))
                return found if found is None else found + stop
        found = self._filled(bare, "", deeper, tries)
        if found is None and self._beyond is not None and " " in bare:  # a key of a manifest is no id
            found = self._beyond.translate(bare)
        return found if found is None else found + stop

    def _filled(self, text: str, mark: str, deeper: Translate, tries: Iterator[int]) -> str | None:
        """By one template. Of a text with borders only templates that have one, or end in what may hold one."""
        forms = tuple(dict.fromkeys((text, _lowered(text))))
        for template in self._ordered:
            for form in forms:
                if template.anchor in form and all(part in form for part in template.literals):
                    if mark and mark not in template.english and not template.holds_more:
                        continue
                    if next(tries, None) is None:
                        return None
                    filled = template.fill(form, deeper)
                    if filled is not None:
                        return filled
        return None


def split(text: str, mark: str) -> Iterator[str]:
    """At the marks that are not in parentheses, `commands` or "quotes".

    >>> list(split("a (b; c); `d; e`; f", "; "))
    ['a (b; c)', '`d; e`', 'f']
    """
    depth, quote, begin = 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in '`"':
            quote = char
        else:
            depth += (char in _OPENS) - (char in _CLOSES and depth > 0)
            dots = char == "." and text[index - 1 : index] == "."  # "rdma/... in the limits"
            if not depth and not dots and text.startswith(mark, index) and index >= begin:
                yield text[begin:index]
                begin = index + len(mark)
    yield text[begin:]


def is_wide(char: str) -> bool:
    return char != "" and char_columns(char) == 2


def _with_last(parts: list[str]) -> Iterator[tuple[str, bool]]:
    return ((part, index == len(parts) - 1) for index, part in enumerate(parts))


def _bare(text: str) -> str:
    """Without the full stop."""
    return text[:-1] if text.endswith(".") and not text.endswith(("..", " .")) else text


def _lowered(text: str) -> str:
    """A word at the beginning of a sentence as it is inside of one."""
    return text[0].lower() + text[1:] if text[:1].isupper() and not text[1:2].isupper() else text
