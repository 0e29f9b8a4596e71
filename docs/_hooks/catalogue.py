"""A page of each finding, in English and Chinese, from what the code says: manual, causes, detectors, rules, alerts."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from repository import ROOT

from diag.detectors import DETECTORS
from diag.detectors.precedence import PRECEDENCE
from diag.detectors.rules.load import packaged
from diag.detectors.rules.schema import Rule
from diag.model import what_holds
from diag.outputs import manual

__all__ = ["folder", "pages"]

_LONGEST_LINE = 240  # characters of an example
# Tables of the reference that belong on the page of a finding: file and heading.
_TABLES = {
    "hang": ("reference/findings.md", "Classes of `hang`"),
    "ib-fallback": ("reference/network.md", "Causes of `ib-fallback`"),
}
_CODE = r"(`[^`]+`)"
# --flag, --flag=value, VARIABLE_NAME, VARIABLE_NAME=value
_NAME = re.compile(
    r"(?<![\w-])(?:--[A-Za-z][\w-]*(?:=[\w.:/^-]*\w)?|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w*])(?:=[\w.:^-]*\w)?)"
)
_WORDS = {
    "en": {
        "title": "Findings",
        "intro": "Every problem that diag can report, under the name that `diag explain` and each report use. The pages are "
        "generated from the code, the manual and the rules of this version.",
        "id": "finding", "meaning": "means", "rules": "rules",
        "causes": "Causes", "checks": "from checks", "lines": "from log lines",
        "lines_head": "Log lines that open it",
        "lines_intro": "Each rule with a line it was written for. A check of diag that knows more takes the place of the rule.",
        "cause": "cause", "versions": "versions", "advice": "advice", "false": "false alarms", "origin": "from",
        "alerts": "Alerts", "alert": "alert", "for": "for", "severity": "severity", "expression": "expression",
        "where": "Where it is judged", "whole": "For multi-node jobs only the job hub reports it: it sees all ranks.",
        "terminal": "In a terminal", "other": "中文", "at once": "at once", "by kind": "by kind of finding",
    },
    "zh": {
        "title": "诊断目录",
        "intro": "diag 能报告的全部诊断，名称与 `diag explain` 和报告中的一致。这些页面由本版本的代码、手册和规则生成。",
        "id": "诊断", "meaning": "含义", "rules": "规则数",
        "causes": "原因（cause）", "checks": "由检查给出", "lines": "由日志行给出",
        "lines_head": "会触发它的日志行",
        "lines_intro": "每条规则附一行它所针对的真实日志。diag 自己的检查知道得更多时，以检查为准。",
        "cause": "原因", "versions": "版本", "advice": "怎么办", "false": "误报", "origin": "来源",
        "alerts": "告警", "alert": "告警", "for": "持续", "severity": "级别", "expression": "表达式",
        "where": "判断它的代码", "whole": "多节点任务中只由看到所有 rank 的 job hub 给出。",
        "terminal": "在终端里", "other": "English", "at once": "立即", "by kind": "按诊断种类",
    },
}  # fmt: skip


def folder(lang: str) -> str:
    return "findings" if lang == "en" else f"{lang}/findings"


def pages(lang: str) -> dict[str, str]:
    """Path in the site -> markdown, the index first, then the findings in the order of `diag explain`."""
    made = {f"{folder(lang)}/index.md": _index(lang)}
    return {**made, **{f"{folder(lang)}/{finding}.md": _page(finding, lang) for finding in manual.ids()}}


def _index(lang: str) -> str:
    words = _WORDS[lang]
    told = {finding: _text(_sentence(manual.meaning(finding, lang)), table=True) for finding in manual.ids()}
    rows = [
        f"| [`{finding}`]({finding}.md) | {means} | {len(_rules(finding)) or ''} |"
        for finding, means in told.items()
    ]
    head = [
        f"# {words['title']}",
        "",
        words["intro"],
        "",
        f"| {words['id']} | {words['meaning']} | {words['rules']} |",
    ]
    return "\n".join([*head, "| --- | --- | --- |", *rows, ""])


def _page(finding: str, lang: str) -> str:
    words = _WORDS[lang]
    other = "zh" if lang == "en" else "en"
    there = f"../zh/findings/{finding}.md" if lang == "en" else f"../../findings/{finding}.md"
    parts = [f"# {finding}", f"[{words['other']}]({there})"]
    for heading, text in manual.sections(finding, lang).items():
        last = heading == manual.HEADINGS[lang][-1]
        parts += [f"## {heading}", _see_also(text) if last else "\n".join(_lines(_sentence(text)))]
    parts += _causes(finding, lang)
    if lang == "en" and finding in _TABLES:
        parts += [_section(*_TABLES[finding])]
    rules = _rules(finding)
    if rules:
        parts += [f"## {words['lines_head']}", words["lines_intro"], *(_rule(rule, lang) for rule in rules)]
    parts += _alerts(finding, lang)
    places = _judged_in().get(finding, [])
    if places or finding in PRECEDENCE.whole_job:
        parts += [f"## {words['where']}", ", ".join(f"`{place}`" for place in places)]
        parts += [words["whole"]] if finding in PRECEDENCE.whole_job else []
    typed = "\n".join(f"$ diag explain {finding} --lang {one}" for one in (lang, other))
    parts += [f"## {words['terminal']}", f"```console\n{typed}\n```"]
    return "\n\n".join(parts) + "\n"


def _lines(text: str) -> list[str]:
    return [f"- {_text(line[2:])}" if line.startswith("- ") else _text(line) for line in text.splitlines()]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]  # behind a heading's colon it begins small


def _see_also(text: str) -> str:
    known = set(manual.ids())
    return ", ".join(f"[`{word}`]({word}.md)" if word in known else _text(word) for word in text.split(", "))


def _causes(finding: str, lang: str) -> list[str]:
    words = _WORDS[lang]
    of_rules = sorted({rule.cause for rule in _rules(finding) if rule.cause})
    rows = [
        f"- {words[name]}: {', '.join(f'`{cause}`' for cause in causes)}"
        for name, causes in (("checks", dict.fromkeys(manual.causes(finding, lang))), ("lines", of_rules)) if causes
    ]  # fmt: skip
    return [f"## {words['causes']}", "\n".join(rows)] if rows else []


def _section(name: str, heading: str) -> str:
    """What stands below a heading of a page of the reference, with it, and with its links as seen from a finding's page."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    found = text.partition(f"## {heading}\n")[2]
    if not found:
        raise ValueError(f"docs/{name} has no heading {heading!r}")
    found = re.sub(r"\]\((?!\.\.|http|#)", "](../reference/", re.split(r"^## ", found, flags=re.MULTILINE)[0])
    return f"## {heading}\n{found}".strip()


# --- rules -------------------------------------------------------------------------------------------------------


def _rules(finding: str) -> list[Rule]:
    return [rule for rule in packaged().rules if rule.finding == finding]


def _rule(rule: Rule, lang: str) -> str:
    words, said = _WORDS[lang], rule.zh if lang == "zh" else rule
    example = rule.examples[0]
    told = [
        line for line in example.text.splitlines() if any(pattern.literal in line for pattern in rule.match)
    ]
    line = (told[-1] if told else example.text.splitlines()[-1]).strip()
    facts = [f"{words['cause']}: `{rule.cause}`"] if rule.cause else []
    facts += [f"`{rule.severity}`", f"`{rule.role}`"]
    if rule.applies:
        facts.append(
            f"{words['versions']}: "
            + ", ".join(f"{name} `{versions}`" for name, versions in rule.applies.items())
        )
    body = [
        f"```text\n{line[:_LONGEST_LINE]}\n```",
        "; ".join(facts),
        f"{words['advice']}: {_text(what_holds(said.advice, over=False))}",
        f"{words['false']}: {_text('; '.join(said.false_positives))}",
        f"{words['origin']}: {_text(example.origin)}; {_text('; '.join(rule.references))}",
    ]
    title = f"{rule.id}: {said.title}".replace('"', "'").replace("<", "&lt;")
    inner = "\n\n".join(body).replace("\n", "\n    ").replace("\n    \n", "\n\n")
    return f'??? example "{title}"\n\n    {inner}'


# --- alerts and code ---------------------------------------------------------------------------------------------


@cache
def _all_alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "rules" / "alerts" / "diag.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def _tells(alert: dict[str, Any], finding: str) -> bool:
    """By the page that it leads to; one that is for kinds of findings tells of those that its expression does not leave out."""
    target = alert["annotations"]["runbook_url"].rpartition("/")[2].removesuffix(".md")
    if "{{" not in target:
        return bool(target == finding)
    left_out = re.search(r'kind!~"([^"]*)"', alert["expr"])
    return left_out is None or finding not in left_out[1].split("|")


def _alerts(finding: str, lang: str) -> list[str]:
    words = _WORDS[lang]
    told = [alert for alert in _all_alerts() if _tells(alert, finding)]
    if not told:
        return []
    rows = [
        f"| {words['alert']} | {words['severity']} | {words['for']} | {words['expression']} |",
        "| --- | --- | --- | --- |",
    ]
    for alert in told:
        expression = " ".join(alert["expr"].split()).replace("|", "\\|")
        severity = alert.get("labels", {}).get("severity", words["by kind"])
        rows.append(
            f"| `{alert['alert']}` | {severity} | {alert.get('for', words['at once'])} | `{expression}` |"
        )
    return [f"## {words['alerts']}", "\n".join(rows)]


@cache
def _judged_in() -> dict[str, list[str]]:
    """Finding -> files that make it: its detector first, then all that write its id into a Finding or a line of doctor."""
    found: dict[str, dict[str, None]] = {}
    for kind in DETECTORS:
        file = Path(inspect.getsourcefile(kind) or "").resolve()
        if kind.name != "signatures":
            found.setdefault(kind.name, {})[file.relative_to(ROOT).as_posix()] = None
    for path in sorted(
        [*(ROOT / "diag" / "detectors").rglob("*.py"), *(ROOT / "diag" / "preflight").rglob("*.py")]
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
                *("Finding", "finding", "line_finding"),
                "Line",
            ):
                for value in [*node.args, *(word.value for word in node.keywords if word.arg == "id")]:
                    if isinstance(value, ast.Constant) and value.value in manual.ids():
                        found.setdefault(str(value.value), {})[path.relative_to(ROOT).as_posix()] = None
    for path in sorted((ROOT / "diag" / "preflight" / "lines").glob("*.yaml")):
        kept = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in (kept, *kept.get("lines", {}).values()):
            if entry.get("id") in manual.ids():
                found.setdefault(entry["id"], {})[path.relative_to(ROOT).as_posix()] = None
    return {finding: list(files) for finding, files in found.items()}


def _text(words: str, *, table: bool = False) -> str:
    """Plain words as markdown that shows them as they are; what is in backticks stays code, flags and variables become code."""
    named = [part if part.startswith("`") else _NAME.sub(r"`\g<0>`", part) for part in re.split(_CODE, words)]
    parts = re.split(_CODE, "".join(named))
    shown = [
        part if part.startswith("`") else re.sub(r"([\\*_\[\]])", r"\\\1", part).replace("<", "&lt;")
        for part in parts
    ]
    text = "".join(shown)
    return (
        text.replace("|", "\\|")
        if table
        else re.sub(r"^(\d+)([.)])", r"\1\\\2", re.sub(r"^([#>+-])", r"\\\1", text))
    )
