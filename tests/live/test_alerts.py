"""The alert rules shipped in rules/alerts: promtool runs the tests beside them, amtool the routes, and a real
Prometheus with a real Alertmanager tells of a hang, or of what it follows from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.model.observations import RankExited
from diag.outputs import manual
from diag.outputs.http.server import serve
from tests.live.prometheus import ALERTMANAGER, PROMETHEUS, PROMTOOL, Alertmanager, Prometheus
from tests.live.queries import check_names, metrics_of_recording_rules
from tests.outputs import conftest as kit

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "rules" / "alerts"
ROUTES = ROOT / "deploy" / "prometheus" / "alertmanager.yml"
AMTOOL = shutil.which("amtool")
RULES = [
    rule
    for name in ("diag.yaml", "diag-records.yaml")
    for group in yaml.safe_load((ALERTS / name).read_text())["groups"]
    for rule in group["rules"]
]
ALERT_RULES = {rule["alert"]: rule for rule in RULES if "alert" in rule}

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)"
)
needs_amtool = pytest.mark.skipif(
    AMTOOL is None, reason="amtool is not installed (Debian package prometheus-alertmanager)"
)


@pytest.mark.live
@needs_promtool
def test_promtool_runs_the_rules_own_tests() -> None:
    words = ["promtool", "test", "rules", "diag_test.yaml"]
    answer = subprocess.run(words, cwd=ALERTS, capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("name", sorted(ALERT_RULES))
def test_alert_has_a_test_in_which_it_fires_and_one_in_which_it_is_silent(name: str) -> None:
    tests = yaml.safe_load((ALERTS / "diag_test.yaml").read_text())["tests"]
    expected = [
        case.get("exp_alerts", [])
        for test in tests
        for case in test.get("alert_rule_test", [])
        if case["alertname"] == name
    ]

    assert [] in expected and any(expected)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rule_uses_only_metrics_and_labels_that_are_exported(rule: dict[str, Any]) -> None:
    check_names(rule["expr"])


@pytest.mark.parametrize("name", sorted(ALERT_RULES))
def test_alert_keeps_the_job_and_says_how_grave_it_is_and_where_to_read_on(name: str) -> None:
    rule = ALERT_RULES[name]
    kept = [match.split(", ") for match in re.findall(r"\bby \(([^)]*)\)", rule["expr"])]
    runbook = rule["annotations"]["runbook_url"].replace("{{ $labels.kind }}", "straggler")
    path, _, anchor = runbook.partition("#")

    assert all("job_id" in labels for labels in kept) and kept  # or two jobs would be one
    assert rule.get("labels", {}).get("severity") in ("critical", "warning") or "severity" in kept[0]
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    assert (ROOT / path).is_file()
    assert not anchor or anchor in [
        head.lower() for head in re.findall(r"^#+ (\w+)$", (ROOT / path).read_text(), re.MULTILINE)
    ]


def test_every_finding_has_the_page_that_the_alert_of_it_points_to() -> None:
    missing = [
        kind
        for kind in manual.ids()
        if not kind.count(".") and not (ROOT / f"diag/outputs/manual/en/{kind}.md").is_file()
    ]

    findings = {kind for kind in missing if "What to do" in manual.text(kind, "en")}
    assert findings == set()


def test_recorded_names_say_level_metric_and_operation() -> None:
    for name, labels in metrics_of_recording_rules().items():
        level, metric, operation = name.split(":")
        assert level == "_".join(labels)
        assert metric.startswith("diag_") and operation in ("sum", "min", "max", "rate5m", "mean5m")


# -- Alertmanager
# ----------------------------------------------------------------------------------------------


@pytest.mark.live
@needs_amtool
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [("alertname=DiagRankHung severity=critical job_id=a", "pager"), ("alertname=DiagShmLow severity=warning", "chat"),
     ("alertname=DiagFinding severity=critical kind=host-oom", "pager"), ("alertname=DiagAgentDown severity=warning", "platform"),
     ("alertname=DiagNoHeartbeat severity=warning", "platform"), ("alertname=HostDown severity=critical", "nobody")],
)  # fmt: skip
def test_alert_goes_to_those_whom_it_concerns(labels: str, receiver: str) -> None:
    assert AMTOOL
    words = [AMTOOL, "config", "routes", "test", "--config.file", str(ROUTES), *labels.split()]
    checked = subprocess.run(
        [AMTOOL, "check-config", str(ROUTES)], capture_output=True, text=True, timeout=60, check=False
    )

    routed = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert routed.stdout.split() == [receiver], routed.stderr


def test_routes_and_inhibitions_name_only_alerts_that_there_are() -> None:
    text = "\n".join(line for line in ROUTES.read_text().splitlines() if "matchers" in line)

    named = set(re.findall(r"Diag[A-Z]\w+", text))
    assert named <= set(ALERT_RULES) and "DiagRankHung" in named


class Receiver:
    """Takes what Alertmanager sends: (receiver, job, names of the alerts)."""

    def __init__(self) -> None:
        took: list[tuple[str, str, frozenset[str]]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = frozenset(alert["labels"]["alertname"] for alert in body["alerts"])
                took.append((self.path.strip("/"), body["groupLabels"]["job_id"], names))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *words: object) -> None: ...

        self.took = took
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def hung_hub() -> Any:
    """Four ranks, of which rank 3 holds up the others; its job goes on with the times of now."""
    hub = kit.FakeHub()
    kit.tell_job(hub, 4)
    hub.says.findings = [kit.finding()]
    hub.engine.advance(1040.0)
    return hub


@pytest.mark.live
@pytest.mark.skipif(not (PROMETHEUS and ALERTMANAGER), reason="no prometheus and alertmanager here (Debian packages prometheus, "
                    "prometheus-alertmanager)")  # fmt: skip
def test_hang_is_told_alone_and_not_beside_the_death_that_it_follows_from(
    tmp_path: Path, receiver: Receiver
) -> None:
    rules = yaml.safe_load((ALERTS / "diag.yaml").read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)  # a test need not wait for a minute
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    routes = tmp_path / "alertmanager.yml"
    text = ROUTES.read_text().replace("127.0.0.1:5001", f"127.0.0.1:{receiver.port}")
    routes.write_text(re.sub(r"group_wait: \w+", "group_wait: 4s", text))
    died, hung = hung_hub(), hung_hub()
    died.tell(1041.0, RankExited(2, 752, None, 9, "pidfd"))

    with ExitStack() as stack:
        servers = [serve(died), serve(hung)]
        for server in servers:
            stack.callback(server.stop)
        alertmanager = stack.enter_context(Alertmanager(tmp_path / "alertmanager", routes))
        groups = [{"targets": [f"127.0.0.1:{server.port}"], "labels": {"job_id": job, "node": "n0"}}
                  for server, job in zip(servers, ("died", "hung"), strict=True)]  # fmt: skip
        stack.enter_context(Prometheus(tmp_path / "prometheus", {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(tmp_path / "rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.address]}]}]},
            "scrape_configs": [{"job_name": "diag", "static_configs": groups}],
        }))  # fmt: skip
        until = time.monotonic() + 60
        while {job for who, job, _ in receiver.took if who == "pager"} != {"died", "hung"}:
            assert time.monotonic() < until, (receiver.took, alertmanager.alerts())
            time.sleep(0.1)
        states = {
            (alert["labels"]["job_id"], alert["labels"]["alertname"]): alert["status"]["state"]
            for alert in alertmanager.alerts() if alert["labels"]["alertname"] in ("DiagRankHung", "DiagRankDead")
        }  # fmt: skip

    told = {job: frozenset().union(*(names for who, about, names in receiver.took if (who, about) == ("pager", job)))
            for job in ("died", "hung")}  # fmt: skip
    assert states == {
        ("died", "DiagRankHung"): "suppressed", ("died", "DiagRankDead"): "active", ("hung", "DiagRankHung"): "active"
    }  # fmt: skip
    assert told == {"died": {"DiagRankDead"}, "hung": {"DiagRankHung"}}
