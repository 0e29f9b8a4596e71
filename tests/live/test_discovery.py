"""A real `diag run` tells a real Prometheus where it is, by file_sd and by http_sd, and is scraped with the
job's labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.prometheus import PROMTOOL, Prometheus, needs_prometheus

pytestmark = [pytest.mark.live, needs_prometheus]


DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
EXAMPLES = sorted(DEPLOY.glob("prometheus-*.yml"))


def example(name: str, **changed: Any) -> dict[str, Any]:
    """A file of deploy/prometheus for this machine: quick, without alerts, and with what `changed` has in its
    scrape config."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    scrape = {**config["scrape_configs"][0], "scrape_interval": "1s", **changed}
    return {"scrape_configs": [scrape]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_promtool_takes_the_example(path: Path, tmp_path: Path) -> None:
    assert PROMTOOL
    token = tmp_path / "token"
    token.write_text("t")
    config = yaml.safe_load(path.read_text().replace("/etc/prometheus/diag-token", str(token)))
    rules = DEPLOY.parents[1] / "rules" / "alerts"
    config["rule_files"] = [str(rules / name) for name in ("diag.yaml", "diag-records.yaml")]

    told = _check(config, tmp_path)
    # Debian builds it without: all but these lines is checked
    if "kubernetes_sd_configs not found" in told.stderr:
        del config["scrape_configs"][0]["kubernetes_sd_configs"]
        told = _check(config, tmp_path)

    assert told.returncode == 0, told.stderr


def _check(config: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return subprocess.run(
        [PROMTOOL, "check", "config", str(path)], capture_output=True, text=True, timeout=60, check=False
    )


def test_relabelling_for_kubernetes_keeps_native_sidecars_and_names_the_job(tmp_path: Path) -> None:
    """Debian's Prometheus knows no kubernetes_sd: the rules are given to it with what kubernetes_sd would
    tell of three pods."""
    config = yaml.safe_load((DEPLOY / "prometheus-kubernetes.yml").read_text())["scrape_configs"][0]
    pod = {"namespace": "ml", "pod_node_name": "gpu-17", "pod_phase": "Running", "pod_name": "dpo-node-0-0-x",
           "pod_container_init": "true", "pod_container_port_name": "diag-metrics",
           "pod_label_batch_kubernetes_io_job_name": "dpo-node-0", "pod_label_jobset_sigs_k8s_io_jobset_name": "dpo"}  # fmt: skip
    pods = [pod, {**pod, "pod_container_port_name": "http"}, {**pod, "pod_phase": "Succeeded"}]
    groups = [
        {
            "targets": [f"127.0.0.1:{index + 1}"],
            "labels": {f"__meta_kubernetes_{name}": value for name, value in told.items()},
        }
        for index, told in enumerate(pods)
    ]
    scrape = {"job_name": "diag", "static_configs": groups, "relabel_configs": config["relabel_configs"]}

    with Prometheus(tmp_path, {"scrape_configs": [scrape]}) as prometheus:
        found = until(lambda: prometheus.get("targets", state="active")["activeTargets"] or None)

    assert [target["labels"] for target in found] == [
        {
            "instance": "127.0.0.1:1",
            "job": "diag",
            "job_id": "ml/dpo",
            "namespace": "ml",
            "node": "gpu-17",
            "pod": "dpo-node-0-0-x",
        }
    ]


def test_prometheus_finds_a_run_by_its_file_and_by_its_list_and_loses_it_with_the_run(tmp_path: Path) -> None:
    targets, hold, token = tmp_path / "targets", tmp_path / "hold", tmp_path / "token"
    targets.mkdir()
    os.mkfifo(hold)
    token.write_text("not asked for on loopback")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "diag", "run", "--port", "0", "--job-id", "dpo-7", "--sd-file", str(targets), "--",
         sys.executable, "-c", f"open({str(hold)!r}).read()"],
        env={**os.environ, **rank, "DIAG_RUN_ROOT": str(tmp_path / "runs")}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        path = until(lambda: next(targets.glob("dpo-7-*.json"), None))
        address = json.loads(path.read_text())[0]["targets"][0]
        by_file = example("prometheus-file-sd.yml", file_sd_configs=[{"files": [f"{targets}/*.json"]}])
        sd = {
            "url": f"http://{address}/sd",
            "refresh_interval": "1s",
            "authorization": {"credentials_file": str(token)},
        }
        by_list = example("prometheus-http-sd.yml", job_name="diag-http", http_sd_configs=[sd])
        config = {"scrape_configs": by_file["scrape_configs"] + by_list["scrape_configs"]}

        with Prometheus(tmp_path / "prometheus", config) as prometheus:
            found = [prometheus.wait_for(f'diag_rank_info{{job="{job}"}}') for job in ("diag", "diag-http")]
            discovered = prometheus.get("targets", state="active")["activeTargets"][0]["discoveredLabels"]
            hold.write_text("")
            run.wait(60)
            until(
                lambda: (
                    [
                        target
                        for target in prometheus.get("targets", state="active")["activeTargets"]
                        if target["scrapePool"] == "diag"
                    ]
                    or None
                ),
                lambda left: left is None,
            )
    finally:
        run.kill()
        run.wait()

    for rows in found:
        labels = rows[0]["metric"]
        assert (labels["job_id"], labels["node"], labels["rank"]) == ("dpo-7", os.uname().nodename, "0")
        assert not [name for name in labels if "run" in name]
    assert discovered["__meta_diag_run_id"]
    assert not list(targets.iterdir())


def until(look: Any, want: Any = lambda value: value is not None, within: float = 60.0) -> Any:
    end = time.monotonic() + within
    while True:
        value = look()
        if want(value):
            return value
        assert time.monotonic() < end
        time.sleep(0.05)
