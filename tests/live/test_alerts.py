"""The alert rules shipped in rules/alerts: promtool runs the tests beside them; every metric they use is one of ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from diag.outputs.prometheus import METRICS

ALERTS = Path(__file__).parents[2] / "rules" / "alerts"


@pytest.mark.live
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)")
def test_promtool_runs_the_rules_own_tests() -> None:
    words = ["promtool", "test", "rules", "diag_test.yaml"]
    answer = subprocess.run(words, cwd=ALERTS, capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_alerts_use_only_metrics_that_diag_exports() -> None:
    used = set(
        re.findall(r"diag_\w+", "\n".join(line for line in (ALERTS / "diag.yaml").read_text().splitlines() if "expr:" in line))
    )

    assert used <= {metric.name for metric in METRICS}


def test_dashboard_uses_only_metrics_that_diag_exports() -> None:
    text = (ALERTS.parents[1] / "dashboards" / "diag-job.json").read_text()

    assert set(re.findall(r"diag_\w+", text)) <= {metric.name for metric in METRICS}
