"""The documentation and the code say the same: every setting, option, finding, metric and path is mentioned."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml

from diag.cli.main import VERBS, make_parser
from diag.detectors import DETECTORS
from diag.detectors.rules.load import packaged
from diag.detectors.signatures import SignatureDetector
from diag.outputs import manual
from diag.settings import Settings
from tests.manual.causes_in_code import MAKERS

ROOT = Path(__file__).parents[1]
HANG_FILES = sorted((ROOT / "diag" / "detectors" / "hang").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "reference").glob("*.md"))]
DOCS = "\n".join(page.read_text() for page in PAGES)

# Public API: ids that scripts and alerts match. A new one has a row in docs/reference; none is ever renamed.
FINDING_IDS = frozenset(manual.ids())
HANG_CLASSES = frozenset(
    [
        "data_loading",
        "preprocess_wait",
        "collective_mismatch",
        "collective_order_deadlock",
        "peer_lost",
        "peer_not_joined",
        "resource_wait",
        "lock_deadlock",
        "gil_deadlock",
        "gpu_side",
        "network_transport",
        "checkpoint_io",
        "rendezvous",
        "comm_init",
        "compile_wait",
        "teardown",
        "stopped",
        "unknown",
    ]
)


def is_mentioned(word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", DOCS) is not None


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_setting_is_documented_with_its_variable(name: str) -> None:
    assert f"`{name}`" in DOCS
    assert f"`DIAG_{name.upper()}`" in DOCS


def options() -> list[tuple[str, str]]:
    verbs = make_parser()._subparsers
    assert verbs is not None
    parsers: dict[str, argparse.ArgumentParser] = dict(verbs._group_actions[0].choices)  # type: ignore[arg-type]
    return [
        (verb, max(action.option_strings, key=len))
        for verb, parser in parsers.items()
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    ]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_verb_is_documented(verb: str) -> None:
    assert re.search(rf"`diag {verb}\b", DOCS)


@pytest.mark.parametrize(("verb", "option"), options())
def test_option_is_documented_with_its_verb(verb: str, option: str) -> None:
    row = next((line for line in DOCS.splitlines() if line.startswith(f"| `diag {verb}")), "")

    assert re.search(rf"{re.escape(option)}(?![\w-])", row), (
        f"{option} is not in the row of `diag {verb}` in commands.md"
    )


def test_no_option_is_documented_that_there_is_not() -> None:
    known = {option for _, option in options()} | {"-o", "-q", "-"}
    for line in DOCS.splitlines():
        verb = re.match(r"\| `diag (\w+)", line)
        if verb:
            assert set(re.findall(r"`(--?[\w-]+)", line)) <= known, line


def ids_in_code() -> set[str]:
    """The first argument, or `id=`, of every Finding(...) or finding(...) that a detector makes, and the ids of doctor's
    lines."""
    found = {kind.name for kind in DETECTORS if kind is not SignatureDetector}
    found |= {rule.finding for rule in packaged().rules if rule.finding is not None}
    for path in [*(ROOT / "diag" / "detectors").rglob("*.py"), *(ROOT / "diag" / "preflight").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            arguments = {keyword.arg: keyword.value for keyword in node.keywords}
            value: ast.expr | None = None
            if name in MAKERS:
                value = node.args[0] if node.args else arguments.get("id")
            elif name == "Line":
                value = node.args[4] if len(node.args) > 4 else arguments.get("id")
            if isinstance(value, ast.Constant) and value.value:
                found.add(str(value.value))
    for path in (ROOT / "diag" / "preflight" / "lines").glob("*.yaml"):
        kept = yaml.safe_load(path.read_text())
        found |= {str(entry["id"]) for entry in (kept, *kept.get("lines", {}).values()) if "id" in entry}
    return found


def test_every_finding_that_can_be_made_has_a_page_and_no_other_is_documented() -> None:
    text = "".join((ROOT / f"docs/reference/{page}.md").read_text() for page in ("findings", "log-lines"))
    rows = re.findall(r"^\| (\[?`.*?) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}

    assert sorted(ids_in_code() - FINDING_IDS) == [], "write diag/outputs/manual/en/ID.md"
    assert sorted(FINDING_IDS - documented) == [], "add a row to docs/reference/findings.md"
    assert sorted(documented - FINDING_IDS) == [], "an id is public for ever: nothing gives it any more"


@pytest.mark.parametrize("finding", sorted(ids_in_code()))
def test_finding_has_a_manual_page(finding: str) -> None:
    page = manual.text(finding, "en")

    assert [
        part for part in ("Meaning:", "Evidence:", "What to do:", "False alarms:") if part not in page
    ] == []


@pytest.mark.parametrize("finding", sorted(ids_in_code()))
def test_finding_is_documented(finding: str) -> None:
    assert f"`{finding}`" in DOCS


def test_every_class_of_hang_that_can_be_said_is_in_the_contract_and_documented() -> None:
    text = "".join(path.read_text() for path in HANG_FILES)
    said = {name for name in HANG_CLASSES if f'"{name}"' in text}

    assert {
        "data_loading",
        "lock_deadlock",
        "stopped",
        "peer_lost",
        "resource_wait",
        "checkpoint_io",
        "unknown",
    } <= said
    assert [name for name in sorted(said) if not is_mentioned(name)] == []


def test_every_cause_of_a_fallback_is_documented() -> None:
    text = (ROOT / "diag" / "detectors" / "network" / "causes.py").read_text()
    causes = set(re.findall(r'\bCause\(\s*"(\w+)"', text))

    assert len(causes) > 10
    assert [cause for cause in sorted(causes) if not re.search(rf"^\| {cause} \|", DOCS, re.MULTILINE)] == []


def test_metrics_are_documented_as_the_code_has_them() -> None:
    """Name, type, labels, unit and meaning, row for row in the code's order."""
    from diag.outputs.prometheus.prometheus import METRICS

    rows = [
        line
        for line in (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines()
        if line.startswith("| `diag_")
    ]

    assert len(METRICS) > 60
    assert rows == [
        f"| `{one.name}` | {one.type} | {', '.join(one.labels) or '-'} | {one.unit or '-'} | {one.help} |"
        for one in METRICS
    ]


def test_every_path_is_documented() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "diag" / "outputs" / "http").glob("*.py")))
    paths = set(
        re.findall(r'\.(?:get|post|route|add_api_route)\(\s*"(/[^"]*)"(?!, include_in_schema=False)', text)
    )

    assert {"/findings", "/ranks", "/dump", "/metrics", "/healthz"} <= paths
    assert [path for path in sorted(paths) if f"`{path}`" not in DOCS] == []


def test_documents_that_are_linked_are_there() -> None:
    # docs/findings is made when the site is built, which finds broken links and anchors of all pages
    # (tests/site)
    for page in PAGES:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists() or "findings/" in target, f"{page.name} links {target}"


@pytest.mark.parametrize("schema", ["diag.report/1", "diag.dump/1", "diag.run/1", "diag.journal/1"])
def test_every_schema_is_documented(schema: str) -> None:
    assert schema in DOCS


def test_every_finding_and_cause_of_a_rule_is_documented() -> None:
    rows = {
        match[1]: match[2]
        for match in re.finditer(r"^\| `([\w-]+)` \| ([\w, ]*) \| \d+ \|$", DOCS, re.MULTILINE)
    }

    missing = [
        (rule.finding, rule.cause)
        for rule in packaged().rules
        if rule.finding is not None
        and (rule.cause or "") not in ["", *rows.get(rule.finding, "").split(", ")]
    ]
    assert missing == []
    assert {rule.finding for rule in packaged().rules if rule.finding} == set(rows)


WIDEST = 110
PROSE = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "deploy/**/*.md",
        "dashboards/*.md",
        "rules/*.md",
        "tests/**/*.md",
    )
    for path in ROOT.glob(pattern)
)


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line)


def is_one_word(line: str) -> bool:
    """What cannot be broken: a link or a name, behind the mark of a list item if it begins one."""
    return re.fullmatch(r"\s*([-*] |\d+\. )?(!?\[[^\]]*\]\(\S+\)|`[^`]+`|\S+)\S*", line) is not None


def too_wide(text: str) -> list[str]:
    """Lines of prose: not of tables, code, headings, one link, or what a program has written."""
    text = re.sub(r"<!-- made by.*?<!-- end", "", text, flags=re.DOTALL)
    prose = re.sub(r"^( *)(`{3,}).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [
        line
        for line in prose.splitlines()
        if columns(line) > WIDEST and not line.lstrip().startswith(("|", "#", "<")) and not is_one_word(line)
    ]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_readable_side_by_side_in_a_review(page: Path) -> None:
    assert too_wide(page.read_text()) == []


def test_tables_code_and_links_may_be_wider() -> None:
    long = "word " * 30
    assert too_wide(f"| {long} |\n```text\n{long}\n```\n- [x]({'a' * 120})\n") == []
    assert too_wide(f"{long}\n```text\n```\n{long}\n") == [long, long]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_readme_is_a_page(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()

    assert len(lines) <= 100
    assert [line for line in lines if columns(line) > WIDEST] == []


def test_changelog_is_for_a_user_of_the_first_release() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 40


def test_first_rule_of_a_contributor_has_twelve_lines_and_passes(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    ((name, text),) = re.findall(r"^```yaml walkthrough:(\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)

    command = [sys.executable, "-m", "diag", "rules", "test", str(tmp_path)]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)

    assert len(text.splitlines()) == 12
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 rule, 2 examples, 0 problems" in tested.stdout + tested.stderr


def test_every_decision_has_one_number_a_date_and_a_status() -> None:
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    found = [
        (int(number), date, status)
        for page in pages
        for number, date, status in re.findall(
            r"^## (\d+)\. .+\n\n(\d{4}-\d\d-\d\d)\.\s(In force|Superseded by \[\d+\]\(\S+\))",
            page,
            re.MULTILINE,
        )
    ]
    headings = [heading for page in pages for heading in re.findall(r"^## \d+\.", page, re.MULTILINE)]
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()

    assert sorted(number for number, _, _ in found) == [*range(1, len(headings) + 1)]
    assert [number for number, _, _ in found if f"- [{number}](" not in index] == []
