"""Known troubles: bugs with a public issue, and what of a job tells that it may meet one. Data in `troubles/*.yaml`;
pure, and read only when somebody asks.

Keys of an entry: `packages` (specifiers of all that must be there; `nccl` and `cudnn` are those libraries),
`arch`, `environment` (a variable and its values, as file patterns), `flags` of the command (any of them; `--flag=value`),
`frames` (any of them: a function, Python's or native, and after a space a part of its file), `operations` (beginnings of a
collective's name), `ranks` (no fewer), `unless` (a workaround that is set), `needs` (what nobody can read), `effect` (hang,
crash, wrong, slow, memory), `what`, `fixed_in`, `workaround`, `sources`; `zh` of the texts; `example` and `negative`: facts that
fit, and facts that do not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from diag.knowledge.versions import fits
from diag.text.tables import load_table

FILES = ("nccl", "torch", "frameworks")
EFFECTS = ("hang", "crash", "wrong", "slow", "memory")
AS_OF = "2026-11"  # when the trackers were last asked

_SAID = "Known trouble"
_SENTENCE = re.compile(rf"{_SAID} (?P<id>[a-z0-9.-]+) (?:fits|may be this hang) \[(?P<there>[^\]]*)\]: ")

_NAMES = {
    "nccl": "NCCL",
    "cudnn": "cuDNN",
    "transformer-engine": "Transformer Engine",
    "deepspeed": "DeepSpeed",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job. `frames`: "function file" each; `words` of the command; `ranks` None where not known."""

    packages: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    words: Collection[str] = ()
    frames: Collection[str] = ()
    operation: str = ""
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """One entry, see above."""

    id: str
    packages: Mapping[str, str]
    effect: str
    what: str
    sources: tuple[str, ...]
    arch: tuple[str, ...] = ()
    environment: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    ranks: int = 0
    needs: str = ""
    fixed_in: str = ""
    workaround: str = ""
    zh: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_conditional(self) -> bool:
        """More than the version of one package is asked for, that can be seen before the run."""
        return bool(self.arch or self.environment or self.flags or len(self.packages) > 1)

    @property
    def is_of_one_release(self) -> bool:
        return all(specifier.startswith("==") for specifier in self.packages.values())

    def fits_before_the_run(self, facts: Facts) -> bool:
        """All that can be seen then; what only a hang shows (frames, operation, number of ranks) is left out."""
        return (
            all(fits(facts.packages.get(name, ""), wanted) for name, wanted in self.packages.items())
            and (not self.arch or facts.machine in self.arch)
            and all(_is_set(facts.environment, name, values) for name, values in self.environment.items())
            and not any(_is_set(facts.environment, name, values) for name, values in self.unless.items())
            and (not self.flags or any(_has_flag(facts.words, flag) for flag in self.flags))
        )

    def fits(self, facts: Facts) -> bool:
        """Everything that the entry asks for is known, and is so."""
        return (
            self.fits_before_the_run(facts)
            and (not self.frames or self.frame_in(facts.frames) != "")
            and (not self.operations or facts.operation.startswith(self.operations))
            and (not self.ranks or (facts.ranks or 0) >= self.ranks)
        )

    def frame_in(self, frames: Collection[str]) -> str:
        """The function of the first of these frames that the entry names; "" where it names none of them."""
        return next((name for frame in frames if (name := _named(frame, self.frames))), "")

    def there(self, facts: Facts) -> str:
        """ "NCCL 2.28.9, aarch64": what fits, in names of no language, as far as it can be seen before the run."""
        found = [f"{_NAMES.get(name, name)} {facts.packages[name]}" for name in self.packages]
        found += [facts.machine] if self.arch else []
        found += [f"{name}={facts.environment[name]}" for name in self.environment]
        found += [flag for flag in self.flags if _has_flag(facts.words, flag)]
        return ", ".join(found)

    def fix(self, lang: str = "en") -> str:
        """ "fixed in X; until then Y", in as far as either is known."""
        workaround = self.text("workaround", lang)
        if lang == "zh":
            fixed = f"已在 {self.fixed_in} 修复" if self.fixed_in else f"截至 {AS_OF} 尚无已知的修复"
            until = "在此之前" if self.fixed_in else "可以先"
            return fixed + (f"；{until}：{workaround}" if workaround else "")
        fixed = f"fixed in {self.fixed_in}" if self.fixed_in else f"no fix known as of {AS_OF}"
        until = "until then" if self.fixed_in else "what helps"
        return fixed + (f"; {until}: {workaround}" if workaround else "")

    def said(self, there: str, lang: str = "en") -> str:
        """Of a hang: a sentence without its stop. `there` is what fits."""
        needs = self.text("needs", lang)
        if lang == "zh":
            fits = "与此吻合" if self.frames else "可能就是这次卡死"
            where = f"（条件：{needs}）" if needs else ""
            return f"已知问题 {self.id} {fits} [{there}]：{self.text('what', lang)}{where}；{self.fix(lang)}；见 {self.sources[0]}"
        fits = "fits" if self.frames else "may be this hang"
        where = f" (with {needs})" if needs else ""
        return f"{_SAID} {self.id} {fits} [{there}]: {self.what}{where}; {self.fix()}; see {self.sources[0]}"

    def text(self, name: str, lang: str = "en") -> str:
        """`what`, `needs` or `workaround`."""
        english: str = getattr(self, name)
        return self.zh.get(name, english) if lang == "zh" else english


@cache
def troubles() -> Mapping[str, Trouble]:
    """By id."""
    folder = Path(__file__).parent / "troubles"
    rows = (item for name in FILES for item in load_table(folder / f"{name}.yaml").items())
    return {name: _trouble(name, row) for name, row in rows}


def _trouble(name: str, row: Mapping[str, Any]) -> Trouble:
    plain = {key: value for key, value in row.items() if key not in ("example", "negative")}
    for key in ("sources", "arch", "flags", "frames", "operations"):
        plain[key] = tuple(plain.get(key, ()))
    for key in ("environment", "unless"):
        plain[key] = {variable: tuple(values) for variable, values in plain.get(key, {}).items()}
    return Trouble(id=name, **plain)


def packages_of(installed: Mapping[str, str]) -> dict[str, str]:
    """Those that are installed, by pip's names, with `nccl` and `cudnn` from the wheels of them that torch brings.

    >>> packages_of({"nvidia-nccl-cu12": "2.27.5", "torch": "2.9.0"})["nccl"]
    '2.27.5'
    """
    found = dict(installed)
    for library in ("nccl", "cudnn"):
        wheels = {version for name, version in installed.items() if name.startswith(f"nvidia-{library}-cu")}
        if len(wheels) == 1:
            found[library] = wheels.pop()
    return found


def at_a_hang(facts: Facts) -> Iterator[Trouble]:
    """Of those that make a job hang: a version alone never tells, a frame, a variable, a flag or the operation must fit too.
    Those with a frame come first."""
    found = [
        one
        for one in troubles().values()
        if one.effect == "hang"
        and (one.frames or one.operations or one.environment or one.flags)
        and one.fits(facts)
    ]
    yield from sorted(found, key=lambda one: not one.frames)


def apart(text: str) -> tuple[str, str]:
    """An advice, and in Chinese what `Trouble.said` has put behind it; "" where that is nothing.

    >>> apart("Mend it."), apart("Mend it. Known trouble nobody-knows fits [NCCL 9]: all of it; no fix.")[1]
    (('Mend it.', ''), '')
    """
    found = [*_SENTENCE.finditer(text)]
    if not found or any(match["id"] not in troubles() for match in found):
        return text, ""
    said = "".join(f"{troubles()[match['id']].said(match['there'], 'zh')}。" for match in found)
    return text[: found[0].start()].rstrip(), said


def page(name: str) -> dict[str, str]:
    """Heading -> text of an entry; an empty one where no trouble has this id."""
    one = troubles().get(name)
    if one is None:
        return {}
    conditions = [f"{_NAMES.get(package, package)} {wanted}" for package, wanted in one.packages.items()]
    conditions += one.arch
    conditions += [f"{variable}={'|'.join(values)}" for variable, values in one.environment.items()]
    conditions += [f"{variable}!={'|'.join(values)}" for variable, values in one.unless.items()]
    conditions += ["|".join(one.flags)] if one.flags else []
    conditions += ["|".join(one.operations)] if one.operations else []
    conditions += [f"{one.ranks}+ ranks"] if one.ranks else []
    conditions += ["|".join(f"{frame.split()[0]}()" for frame in one.frames)] if one.frames else []
    return {
        "Meaning": one.what,
        "Applies to": "; ".join(conditions),
        **({"Only with": one.needs} if one.needs else {}),
        "What to do": one.fix(),
        "Sources": ", ".join(one.sources),
    }


def _is_set(environment: Mapping[str, str], name: str, values: Collection[str]) -> bool:
    return name in environment and any(fnmatchcase(environment[name], value) for value in values)


def _has_flag(words: Collection[str], flag: str) -> bool:
    """
    >>> _has_flag(["--use-sharp"], "--use_sharp"), _has_flag(["--pp", "4"], "--pp=4"), _has_flag(["--pp=2"], "--pp=4")
    (True, True, False)
    """
    name, _, value = flag.partition("=")
    all_of = [*words]
    for number, word in enumerate(all_of):
        given, equals, said = word.partition("=")
        if given.replace("-", "_") == name.replace("-", "_"):
            after = all_of[number + 1] if number + 1 < len(all_of) else ""
            said = said if equals else after
            return said == value if value else said.lower() != "false"
    return False


def _named(frame: str, wanted: Collection[str]) -> str:
    """The function where it is one of those wanted: a native one may have its class in front and arguments behind.

    >>> _named("c10d::ProcessGroupNCCL::abort() libtorch_cuda.so", ["ProcessGroupNCCL::abort"])
    'ProcessGroupNCCL::abort'
    >>> _named("commit /app/train.py", ["commit deepspeed/"])
    ''
    """
    full, _, file = frame.partition(" ")
    function = re.split(r"[(<]", full, maxsplit=1)[0]
    for one in wanted:
        name, _, place = one.partition(" ")
        ends = function == name or function.endswith((f".{name}", f"::{name}"))
        if ends and (not place or place in file):
            return name
    return ""
