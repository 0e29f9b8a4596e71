"""rules/alerts/diag.yaml as the PrometheusRule of deploy/kubernetes/monitoring: `python -m tests.alert_rule`
writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "rules" / "alerts" / "diag.yaml"
MANIFEST = ROOT / "deploy" / "kubernetes" / "monitoring" / "prometheusrule.yaml"
_HEAD = "# rules/alerts/diag.yaml for the Prometheus operator, written by `python -m tests.alert_rule`: change it there.\n"


def manifest() -> dict[str, Any]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "diag"},
        "spec": {"groups": groups},
    }


if __name__ == "__main__":
    MANIFEST.write_text(_HEAD + yaml.safe_dump(manifest(), sort_keys=False, width=130, allow_unicode=True))
