"""Names in PromQL, held against what diag exports: for the alert rules and the dashboards."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

from diag.outputs.prometheus.prometheus import METRICS

__all__ = ["TARGET_LABELS", "check_names", "inlined", "metrics_of_recording_rules", "recording_rules"]

ALERTS = Path(__file__).parents[2] / "rules" / "alerts"
TARGET_LABELS = frozenset({"job", "instance", "job_id", "node"})  # put on by Prometheus (deploy/prometheus)

_SELECTOR = re.compile(r"(?<![\w:])(diag_\w+|\w+:diag_\w+:\w+|up)\b(?:\{([^}]*)\})?")


@cache
def recording_rules() -> dict[str, str]:
    """Name and expression of what rules/alerts/diag-records.yaml records."""
    groups = yaml.safe_load((ALERTS / "diag-records.yaml").read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


@cache
def metrics_of_recording_rules() -> dict[str, tuple[str, ...]]:
    """Name and labels of what is recorded."""
    made = {}
    for name, expression in recording_rules().items():
        by = re.search(r"\bby \(([^)]*)\)", expression)  # the outermost comes first
        assert by is not None
        made[name] = tuple(by[1].split(", "))
    return made


def inlined(expression: str) -> str:
    """An expression with what its recorded series are recorded of: rules look at no past.

    >>> inlined('sum(job_id_state:diag_rank_state:sum{state="hung"})')
    'sum((sum by (job_id, state) (diag_rank_state{state="hung"})))'
    """

    def whole(match: re.Match[str]) -> str:
        limits = match[2] or ""
        body = re.sub(r"(diag_\w+)(?:\{([^}]*)\})?",
                      lambda metric: f"{metric[1]}{{{', '.join(filter(None, (metric[2], limits)))}}}",
                      recording_rules()[match[1]])  # fmt: skip
        return f"({body.strip()})"

    return re.sub(r"(?<![\w:])(\w+:diag_\w+:\w+)(?:\{([^}]*)\})?", whole, expression)


@cache
def _known() -> dict[str, frozenset[str]]:
    known: dict[str, tuple[str, ...]] = {**metrics_of_recording_rules(), "up": ()}
    for spec in METRICS:
        known[spec.name] = spec.labels
        if spec.type in ("histogram", "summary"):
            known |= {f"{spec.name}_sum": spec.labels, f"{spec.name}_count": spec.labels}
        if spec.type == "histogram":
            known[f"{spec.name}_bucket"] = (*spec.labels, "le")
    return {name: TARGET_LABELS.union(labels) for name, labels in known.items()}


def check_names(expression: str) -> set[str]:
    """Each metric and each label of an expression is one that is exported; the metrics. Labels of `by`, `on`
    and of legends are held against all of them together."""
    known = _known()
    used: set[str] = set()
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, inside in _SELECTOR.findall(bare):
        assert name in known, f"{name} is not exported: {expression}"
        used.add(name)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside):
            assert label in known[name], f"{name} has no label {label}: {expression}"
    assert used, f"no metric in {expression}"
    labels = frozenset().union(*(known[name] for name in used))
    for group in re.findall(r"\b(?:by|on|ignoring|without|group_left|group_right) \(([^)]*)\)", bare):
        for label in filter(None, group.split(", ")):
            assert label in labels, f"nothing here has the label {label}: {expression}"
    return used
