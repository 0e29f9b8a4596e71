"""The page as one file: whole, small, and nothing of a job's text acts in it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from diag.cli.recorded import RecordedView
from diag.engine.replay import replay
from diag.model.observations import EvidenceKept
from diag.outputs.http.app import create_app
from diag.outputs.one_file import MOST_BYTES, page_file
from tests.liverun import DIAG

HANG = Path(__file__).parent.parent / "captures/gpu-drills/data-hang-TP2-PP2-EP2"
EVIL = "</script><script>alert(1)</script><!-- api_key=abcd1234efgh5678"


def saved(document: bytes) -> Any:
    [found] = re.findall(r'<script type="application/json" id="diag-saved">(.*?)</script>', document.decode())
    return json.loads(found)


def test_file_holds_what_the_page_shows_and_asks_for(hung: Any) -> None:
    document = page_file(hung, "run run-1")
    held = saved(document)

    assert held["schema"] == "diag.saved/1" and held["cut"] == []
    assert {"now", "head", "report", "ranks", "stacks", "timeline", "nodes"} == set(held["parts"])
    assert [row["rank"] for row in held["parts"]["ranks"]["rows"]] == [0, 1, 2, 3]
    assert {f"ranks/{rank}/stacks" for rank in range(4)} <= set(held["answers"])
    assert {f"timeline?rank={rank}" for rank in range(4)} <= set(held["answers"])
    assert {"explain/hang?lang=en", "explain/hang?lang=zh"} <= set(held["answers"])
    assert held["chinese"]["report"]
    assert len(document) < 700_000


def test_its_modules_import_each_other_by_names_that_the_map_has(hung: Any) -> None:
    text = page_file(hung, "run run-1").decode()
    [found] = re.findall(r'<script type="importmap">(.*?)</script>', text)
    modules = json.loads(found)["imports"]

    for address in modules.values():
        source = base64.b64decode(address.partition(",")[2]).decode()
        wanted = re.findall(r'(?:\bfrom|^import)\s*"([\w./-]+)"', source, re.MULTILINE)
        assert set(wanted) <= set(modules), wanted
    assert "diag/app.js" in modules and "diag/vendor/preact.js" in modules


def test_text_of_a_job_ends_no_element_and_its_secrets_are_hidden(hung: Any, kit: Any) -> None:
    hung.says.findings = [kit.finding(summary=EVIL)]
    hung.engine.advance(1041.0)

    document = page_file(hung, EVIL)

    assert document.count(b"</script>") == 3 and b"alert(1)<" not in document
    assert saved(document)["parts"]["report"]["findings"][0]["summary"] == EVIL.replace(
        "abcd1234efgh5678", "***"
    )
    assert b"abcd1234efgh5678" not in document


def test_policy_lets_it_ask_nobody_and_run_nothing_else(hung: Any) -> None:
    [policy] = re.findall(
        r'http-equiv="Content-Security-Policy" content="([^"]+)"', page_file(hung, "x").decode()
    )

    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy and "unsafe" not in policy and "connect-src" not in policy


def test_large_job_is_cut_to_size_and_says_what_it_lacks(kit: Any) -> None:
    hub = kit.FakeHub()
    kit.tell_job(hub, 1500)
    hub.says.findings = [
        kit.finding(ranks=(1499,), waiting_ranks=tuple(range(1499)), evidence=kit.finding().evidence * 3000)
    ]
    hub.engine.advance(1040.0)

    document = page_file(hub, "run run-1")

    held = saved(document)
    assert 1_000_000 < len(document) <= MOST_BYTES < 2_000_000
    rows = [row["rank"] for row in held["parts"]["ranks"]["rows"]]
    assert 1499 in rows and len(rows) < 1500
    assert "ranks/1499/stacks" in held["answers"] and "explain/hang?lang=zh" in held["answers"]
    assert any(line.startswith("what is known of ranks ") for line in held["cut"])
    assert any(line.startswith("time lines of ranks ") for line in held["cut"])
    assert {*held["chinese"]["cut"]} == {*held["cut"]}
    assert all(text != line for line, text in held["chinese"]["cut"].items())


def test_page_gives_it_to_keep_and_bundles_only_to_who_owns_the_run(hung: Any, tmp_path: Path) -> None:
    kept, other = tmp_path / "evidence-1.tar.gz", tmp_path / "other.tar.gz"
    kept.write_bytes(b"kept")
    other.write_bytes(b"other")
    hung.tell(1041.0, EvidenceKept(None, (("hang", "job"),), str(kept), 4, 1.0))

    def get(path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(create_app(hung), client=("127.0.0.1", 9))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(ask())

    page = get("/report.html")
    assert page.headers["content-disposition"] == 'attachment; filename="diag-report-run-1.html"'
    assert saved(page.content)["parts"]["head"]["recorded"] == "run run-1"
    [finding] = get("/findings").json()["findings"]
    assert finding["bundle"] == str(kept)

    assert (get(f"/bundles/{kept.name}")).status_code == 403  # whose connection it is, is not known here
    hung.token = "t" * 32
    owner = {"authorization": f"Bearer {hung.token}"}
    assert (get(f"/bundles/{kept.name}")).status_code == 401
    assert (get(f"/bundles/{kept.name}", **owner)).content == b"kept"
    assert (get(f"/bundles/{other.name}", **owner)).status_code == 404
    assert (get(f"/bundles/..%2f{other.name}", **owner)).status_code == 404
    hung.recorded = "a capture"  # whose paths a stranger wrote
    assert (get(f"/bundles/{kept.name}", **owner)).status_code == 404


def test_bundle_that_a_dump_wrote_is_given_to_who_owns_the_run(
    hung: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, other = tmp_path / "dump-1.tar.gz", tmp_path / "dump-0.tar.gz"
    bundle.write_bytes(b"dumped")
    other.write_bytes(b"not of this hub")

    async def dump(deadline: float, **_: Any) -> dict[str, Any]:
        return {"schema": "diag.dump/1", "bundle": str(bundle)}

    monkeypatch.setattr(hung, "dump", dump)
    hung.token = "t" * 32
    owner = {"authorization": f"Bearer {hung.token}"}

    async def play() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(hung), client=("127.0.0.1", 9))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            before = await client.get(f"/bundles/{bundle.name}", headers=owner)
            dumped = await client.post("/dump", headers=owner)
            return [
                before,
                dumped,
                await client.get(f"/bundles/{bundle.name}", headers=owner),
                await client.get(f"/bundles/{bundle.name}"),
                await client.get(f"/bundles/{other.name}", headers=owner),
            ]

    before, dumped, after, stranger, another = asyncio.run(play())
    assert [each.status_code for each in (before, dumped, after, stranger, another)] == [
        404,
        200,
        200,
        401,
        404,
    ]
    assert after.content == b"dumped"


# --- the command


def diag_report(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", **variables}
    command = [*DIAG, "report", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd, env=environment
    )


def test_command_writes_the_newest_run_or_the_one_that_is_named(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("20261120-000000-aaaaaa", "20261121-000000-bbbbbb"):
        shutil.copytree(HANG, root / name)
        (root / name / "run.json").write_text('{"schema": "diag.run/1"}')
    at = {"DIAG_RUN_ROOT": str(root), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}

    newest = diag_report(cwd=tmp_path, **at)
    named = diag_report("20261120-000000-aaaaaa", "-o", "one.html", cwd=tmp_path, **at)

    assert (newest.returncode, named.returncode) == (0, 0), newest.stderr + named.stderr
    assert newest.stdout.startswith("diag-report-20261121-000000-bbbbbb.html (")
    file = tmp_path / "one.html"
    assert saved(file.read_bytes())["parts"]["head"]["run_id"] == "20261120-000000-aaaaaa"
    assert file.stat().st_mode & 0o777 == 0o600
    assert saved(file.read_bytes())["parts"]["report"]["sentence"].startswith("The job is held-up")


def test_command_says_what_it_cannot_read_or_write(tmp_path: Path) -> None:
    at = {"DIAG_RUN_ROOT": str(tmp_path / "runs"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}

    assert diag_report("no-such-run", cwd=tmp_path, **at).returncode != 0
    refused = diag_report(str(HANG), "-o", str(tmp_path / "none" / "x.html"), cwd=tmp_path, **at)
    assert (refused.returncode, "cannot be written" in refused.stderr) == (1, True)


def test_report_of_standard_output_is_the_file_and_nothing_else(tmp_path: Path) -> None:
    found = diag_report(str(HANG), "-o", "-", cwd=tmp_path)

    assert found.stdout.startswith("<!doctype html>") and found.stdout.rstrip().endswith("</html>")


def test_recorded_evidence_says_where_it_was_recorded() -> None:
    engine, _, _ = replay([HANG])

    assert saved(page_file(RecordedView(engine, [HANG]), "x"))["parts"]["head"]["recorded"] == str(HANG)


@pytest.mark.parametrize("most", [900_000, 700_000])
def test_smaller_size_is_kept_too(kit: Any, most: int) -> None:
    hub = kit.FakeHub()
    kit.tell_job(hub, 300)
    hub.engine.advance(1040.0)

    assert len(page_file(hub, "x", most)) <= most
