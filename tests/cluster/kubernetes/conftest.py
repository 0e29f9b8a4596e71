"""The manifests of deploy/kubernetes as kustomize makes them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"


@functools.cache
def build(folder: Path) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: it builds what kustomize describes")
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def built(name: str) -> list[dict[str, Any]]:
    """The documents of a folder below deploy/kubernetes."""
    return [document for document in yaml.safe_load_all(build(KUBERNETES / name)) if document]


def jobs_within(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The Jobs that a JobSet, or a training runtime, is made of: what a schema of Kubernetes itself can
    check."""
    spec = document["spec"] if document["kind"] == "JobSet" else document["spec"]["template"]["spec"]
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job["name"]},
            "spec": job["template"]["spec"],
        }
        for job in spec["replicatedJobs"]
    ]
