"""Which versions are known to break together, and which requirements of the packages themselves are not met;
pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from diag.preflight.line import Line
from diag.preflight.software.facts import DISTS, Software

_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Clash:
    """`when` has a specifier for each distribution that must be there, or "absent"; `of` are those that CMD
    must use.

    `message` is what the job then says, `source` where that was seen; `install` what to install instead.
    """

    when: Mapping[str, str]
    of: tuple[str, ...]
    id: str
    message: str
    install: str
    source: str
    otherwise: str = ""


CLASHES: tuple[Clash, ...] = (
    Clash(
        {"mcore-bridge": "==1.6.2", "megatron-core": "<=0.16.1"}, ("mcore-bridge",), "version-mismatch",
        "No module named 'megatron.core.models.hybrid'", "'mcore-bridge==1.6.1'", "run with ms-swift 4.6.0",
    ),
    Clash(
        {"mcore-bridge": ">=1.6.3,<=1.6.5", "triton": _ABSENT}, ("mcore-bridge",), "missing-module",
        "No module named 'triton'", "triton", "run with ms-swift 4.6.0, mcore-bridge 1.6.3 to 1.6.5",
    ),
    Clash(
        {"mcore-bridge": "==1.6.5", "transformers": ">=5.19"}, ("mcore-bridge",), "version-mismatch",
        "'Qwen3MoeConfig' object has no attribute 'rope_theta', when safetensors are saved", "'transformers==4.57.6'",
        "run with ms-swift 4.6.0, transformers 5.19.0", "`--save_safetensors false` avoids it",
    ),
    Clash(
        {"ms-swift": ">=3.12", "msgspec": _ABSENT}, ("ms-swift", "msgspec"), "missing-module",
        "No module named 'msgspec'", "msgspec", "run with ms-swift 3.12.6 and 4.6.0, which do not declare it",
    ),
    Clash(
        {"peft": "<0.18", "transformers": ">=5"}, ("peft",), "version-mismatch",
        "cannot import name 'HybridCache' from 'transformers'", "'peft>=0.18'",
        "https://github.com/modelscope/ms-swift/issues/8167, https://github.com/huggingface/peft/issues/3333",
    ),
    Clash(
        {"deepspeed": "<0.14.1", "torch": ">=2.4"}, ("deepspeed",), "version-mismatch",
        "cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'", "'deepspeed>=0.14.5'",
        "https://github.com/deepspeedai/DeepSpeed/issues/5337",
    ),
    Clash(
        {"numpy": ">=2", "pandas": "<2.2.2"}, ("numpy", "pandas"), "version-mismatch",
        "numpy.dtype size changed, may indicate binary incompatibility", "'numpy<2'", "release notes of pandas 2.2.2",
    ),
    Clash(
        {"numpy": ">=2", "pyarrow": "<16"}, ("numpy", "pyarrow"), "version-mismatch",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2", "'numpy<2'", "release notes of pyarrow 16.0.0",
    ),
    Clash(
        {"numpy": ">=2", "torch": "<2.3"}, ("numpy", "torch"), "version-mismatch",
        "Failed to initialize NumPy: _ARRAY_API not found", "'numpy<2'", "release notes of torch 2.3",
    ),
    Clash(
        {"apex": "<=0.9.10"}, ("apex",), "version-mismatch",
        "cannot import name 'UnencryptedCookieSessionFactoryConfig' from 'pyramid.session'", "",
        "pypi.org/project/apex is a web toolkit, not NVIDIA's apex",
        "`pip uninstall apex`; NVIDIA's is at github.com/NVIDIA/apex; ms-swift without: --gradient_accumulation_fusion false",
    ),
)  # fmt: skip
# The parts of Transformer Engine look at each other's versions when they are imported.
_TE_PARTS = (
    "transformer-engine",
    "transformer-engine-torch",
    "transformer-engine-cu12",
    "transformer-engine-cu13",
)


def fits(version: str, specifier: str) -> bool | None:
    """Builds of NVIDIA's containers ("2.7.0a0+79aa17489c.nv25.4") count as the release that they come before.

    >>> fits("2.7.0a0+79aa17489c.nv25.4", ">=2.7"), fits("2.6.0+cu124", "==2.6.0"), fits("5.19.0", "<5"), fits("dev", ">1")
    (True, True, False, None)
    """
    try:
        known = Version(version)
        allowed = SpecifierSet(specifier)
    except ValueError:  # InvalidVersion, InvalidSpecifier
        return None
    return allowed.contains(known, prereleases=True) or (
        known.is_prerelease and allowed.contains(Version(known.base_version))
    )


def clashes(software: Software, used: Collection[str] | None) -> Iterator[Line]:
    for clash in CLASHES:
        if all(_holds(software, name, wanted) for name, wanted in clash.when.items()):
            concerns = used is not None and all(name in used for name in clash.of)
            there = [
                f"{name} {software.version(name)}" for name, wanted in clash.when.items() if wanted != _ABSENT
            ]
            gone = [f"without {name}" for name, wanted in clash.when.items() if wanted == _ABSENT]
            yield Line(
                "versions", "problem" if concerns else "note",
                f"{' with '.join(there)}{' ' if gone else ''}{' '.join(gone)} fails: {clash.message} ({clash.source})",
                _install(software, clash.install, clash.otherwise), clash.id if concerns else "",
            )  # fmt: skip
    parts = {name: software.version(name) for name in _TE_PARTS if software.version(name)}
    if len({_base(version) for version in parts.values()}) > 1:
        concerns = used is not None and "transformer-engine" in used
        yield Line(
            "versions", "problem" if concerns else "note",
            ", ".join(f"{name} {version}" for name, version in parts.items()) + ": they must be of one version",
            _install(software, f"--no-build-isolation 'transformer-engine[pytorch]=={max(map(_base, parts.values()))}'"),
            "version-mismatch" if concerns else "",
        )  # fmt: skip


def _holds(software: Software, name: str, wanted: str) -> bool:
    version = software.version(name)
    if wanted == _ABSENT:
        return not version and not software.has(name.replace("-", "_"))
    return bool(version) and fits(version, wanted) is True


def _base(version: str) -> str:
    try:
        return Version(version).base_version
    except InvalidVersion:
        return version


def _install(software: Software, what: str, otherwise: str = "") -> str:
    command = f"{software.executable} -m pip install {what}" if what else ""
    return f"{command}; {otherwise}" if command and otherwise else command or otherwise


def unmet(software: Software, used: Collection[str] | None) -> Iterator[Line]:
    """Requirements in the packages' own metadata, of the packages that matter to training. As `pip check`,
    but only of these."""
    for name, texts in software.requires.items():
        if name == "torchvision":  # it is loaded, and tells the same with what follows
            continue
        for text in texts:
            wanted = _requirement(text, software.markers)
            if wanted is None:
                continue
            target = canonicalize_name(wanted.name)
            version = software.version(target)
            if version and fits(version, str(wanted.specifier)) is not False:
                continue
            known = target in DISTS or target.startswith("nvidia-")
            concerns = used is not None and name in used and known and (target in used or name == "torch")
            if not version and not known:
                continue  # gradio and the like: what does need them says so when it is imported
            short = f"{wanted.name}{wanted.specifier}"
            yield Line(
                "versions", "problem" if concerns else "note",
                f"{name} {software.version(name)} requires {short}, {f'{version} is here' if version else 'and it is not here'}",
                f"{software.executable} -m pip install '{short}'",
                ("version-mismatch" if version else "missing-module") if concerns else "",
            )  # fmt: skip


def _requirement(text: str, markers: Mapping[str, str]) -> Requirement | None:
    """None where it does not hold here: another platform, or an extra that was not necessarily asked for."""
    try:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({**markers, "extra": ""}):
            return wanted
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
        pass
    return None
