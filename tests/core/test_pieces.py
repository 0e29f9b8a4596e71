"""Detectors, sources, samplers and outputs: each is one file and one line. These tests name the piece that is
missing, and where it belongs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from diag.agent.samplers.node_samplers import NODE_SAMPLERS
from diag.agent.sidecar import RANK_SAMPLERS
from diag.detectors import DETECTORS
from diag.detectors.cluster import JOB_DETECTORS
from diag.detectors.cluster.verdict import VerdictDetector
from diag.detectors.signatures import SignatureDetector
from diag.engine.importers.policy import LOG
from diag.outputs import manual
from diag.outputs.wiring import OUTPUTS
from diag.settings import Settings
from diag.sources.parsers import PARSERS

ROOT = Path(__file__).parents[2]
# Sources that no sampler reads, and who brings their records.
BROUGHT = {
    "run": "the hub and `diag replay`",
    "output": "the relay and the files of ranks",
    "digest": "hubs of other nodes",
    "verdict": "the job hub",
    "cuda_coredump": "a folder of evidence",
    "native_stack": "`diag dump --native`",
}


@cache
def classes() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    """Of all of diag: name -> the files that have such a class, and the class."""
    found: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for path in sorted((ROOT / "diag").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((str(path.relative_to(ROOT)), node))
    return found


def derived_from(*bases: str) -> Iterator[tuple[str, str]]:
    """(file, class) of those that have one of these as a base."""
    for name, those in classes().items():
        for file, node in those:
            if {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases} & {*bases}:
                yield file, name


def methods(node: ast.ClassDef) -> set[str]:
    return {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


def files_of(kind: type) -> str:
    return kind.__module__.replace(".", "/") + ".py"


@cache
def text_of_tests() -> str:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return "\n".join(text for path in files for text in (path.stem, path.read_text()))


def test_every_detector_is_in_a_tuple() -> None:
    kinds = (*DETECTORS, *JOB_DETECTORS, VerdictDetector, *map(type, LOG.detectors(None)))
    wired = {kind.__name__ for kind in kinds}

    assert [
        f"{file}: {name} is no detector yet: add it to DETECTORS of {Path(file).parent}/__init__.py"
        for name, those in classes().items()
        for file, node in those
        if file.startswith("diag/detectors/")
        and "check" in methods(node)
        and name.endswith("Detector")
        and not name.startswith("_")
        and name not in {"Detector", "LogEndDetector", *wired}  # of a log that ends: replay alone adds it
    ] == []


def test_every_detector_has_a_test() -> None:
    text = text_of_tests()

    assert [
        f"{kind.__name__} of {files_of(kind)} is in no test: write tests/detectors/test_{kind.__module__.rpartition('.')[2]}.py"
        for kind in {*DETECTORS} - {SignatureDetector}
        if not any(
            word in text for word in (kind.__name__, f'"{kind.name}"', kind.__module__.rpartition(".")[2])
        )
    ] == []


def test_every_detector_has_a_manual_page_and_a_row_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/findings.md").read_text()
    missing = []
    for kind in {*DETECTORS} - {SignatureDetector}:
        lacking = [name for name in manual.HEADINGS["en"] if not manual.sections(kind.name, "en").get(name)]
        if lacking:
            missing.append(
                f"{kind.name}: write {', '.join(lacking)} in diag/outputs/manual/en/{kind.name}.md"
            )
        if not re.search(rf"^\|[^|]*`{kind.name}`", reference, re.MULTILINE):
            missing.append(f"{kind.name}: add its row, with its causes, to docs/reference/findings.md")

    assert missing == []


def test_every_source_has_its_parser() -> None:
    missing = []
    for path in sorted((ROOT / "diag/sources").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if not any(isinstance(node, ast.FunctionDef) and node.name == "parse" for node in tree.body):
            continue
        named = [
            node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "SOURCE"
            and isinstance(node.value, ast.Constant)
        ]
        missing += [
            f"{path.relative_to(ROOT)}: nobody parses {name!r}: add `{path.stem}.SOURCE: {path.stem}.parse` to PARSERS of "
            "diag/sources/parsers.py"
            for name in named
            if name not in PARSERS
        ]

    assert missing == []


def test_every_source_is_read_by_somebody() -> None:
    read = {source for kind in (*NODE_SAMPLERS, *RANK_SAMPLERS) for source in kind.sources}

    assert [
        f"{source}: no sampler names it in `sources`: write one (docs/explanation/write-a-source.md)"
        for source in PARSERS
        if source not in read | BROUGHT.keys()
    ] == []
    assert sorted(read - PARSERS.keys()) == [], "add its parser to PARSERS of diag/sources/parsers.py"
    assert sorted(BROUGHT.keys() - PARSERS.keys()) == []


def test_every_sampler_is_started() -> None:
    started = {kind.__name__ for kind in (*NODE_SAMPLERS, *RANK_SAMPLERS)}
    tuples = {
        "NodeSampler": "NODE_SAMPLERS of diag/agent/samplers/node_samplers.py",
        "RankSampler": "RANK_SAMPLERS of diag/agent/sidecar.py",
    }

    assert [
        f"{file}: nobody starts {name}: add it to {where}"
        for base, where in tuples.items()
        for file, name in derived_from(base)
        if name not in started
    ] == []
    for kind in (*NODE_SAMPLERS, *RANK_SAMPLERS):
        assert kind.name and kind.what and kind.sources, f"{kind.__name__}: give it name, what and sources"


def test_every_output_is_opened_and_documented() -> None:
    opened = {kind.__name__ for kind in OUTPUTS}
    reference = "\n".join(page.read_text() for page in sorted((ROOT / "docs/reference").glob("*.md")))

    assert [
        f"{file}: nobody opens {name}: add it to OUTPUTS of diag/outputs/wiring.py"
        for file, name in derived_from("Output")
        if name not in opened
    ] == []
    assert [
        f"{kind.__name__}: its setting {kind.setting!r} is not in diag/settings.py"
        for kind in OUTPUTS
        if kind.setting and kind.setting not in Settings.model_fields
    ] == []
    assert [
        f"{kind.__name__}: name in `documented` what docs/reference says of it in backticks; {kind.documented!r} is not there"
        for kind in OUTPUTS
        if not kind.documented or f"`{kind.documented}" not in reference
    ] == []
