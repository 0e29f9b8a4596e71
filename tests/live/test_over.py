"""A hang that heals, of a real job: while it hangs, after it, and when the job has ended, all faces say the
same."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from diag_job.faults.runtime import release
from tests.liverun import DIAG, JOB, LiveRun, live_run


def typed(*words: str) -> tuple[str, int]:
    answer = subprocess.run([*DIAG, *words], check=False, capture_output=True, text=True, timeout=60)
    return answer.stdout, answer.returncode


def fetch(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=15) as answer:
        return json.load(answer)


def over(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (one["id"], one["class"], one["ranks"], one["since"], one["resolved_at"]) for one in document["past"]
    ]


def open_now(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (one["id"], one["class"], one["ranks"]) for one in document["findings"] if not one.get("resolved_at")
    ]


def test_hang_that_heals_is_over_in_every_face_with_its_whole_length(tmp_path: Path) -> None:
    command = [
        *JOB,
        "--nproc",
        "2",
        "--iters",
        "1000000",
        "--step-seconds",
        "0.2",
        "--fault",
        "data-hang:rank=1,step=5",
    ]
    with live_run(tmp_path, command) as run:
        url = run.until(lambda: run.run_json().get("url"), 60)
        run.until(run.hang, 120)
        _living(run, url, is_open=True)

        release(tmp_path)
        run.until(lambda: run.changes()[-1]["change"] == "resolved", 60)
        [resolved] = [one for one in run.changes() if one["change"] == "resolved"]
        since, ended = resolved["finding"]["since"], resolved["finding"]["resolved_at"]
        assert resolved["at"] == ended and since < resolved["opened_at"] < ended
        _living(run, url, is_open=False)
        said = " ".join(run.text.replace("diag| ", "").split())  # a panel is as wide as the terminal
        line = re.search(r"RESOLVED hang \(data_loading\): rank 1 moves again after ([\d.]+) s \(", said)
        assert line is not None and abs(float(line[1]) - (ended - since)) < 0.6, said[-2000:]

        run.process.terminate()
        run.wait(60)

    _ended(run, (since, ended))


def _living(run: LiveRun, url: str, *, is_open: bool) -> None:
    """The page's state, /findings, a dump and `diag top` of the living run."""
    [change] = [one for one in run.changes() if one["change"] == "opened"]
    wanted = [("hang", "data_loading", [1])] if is_open else []
    state, found = fetch(f"{url}/state"), fetch(f"{url}/findings")
    told, code = typed("top", "--json", "--run-dir", str(run.run_dir))
    dumped, dump_code = typed("dump", "--json", "--run-dir", str(run.run_dir))
    for document in (state["report"], found, json.loads(told)["report"], json.loads(dumped)):
        assert open_now(document) == wanted
        assert [one[:3] for one in over(document)] == ([] if is_open else [("hang", "data_loading", [1])])
        assert ("nothing open; 1 over: hang (data_loading), rank 1" in document["sentence"]) is not is_open
    assert (code, dump_code) == (10, 10)
    picture, _ = typed("top", "--once", "--run-dir", str(run.run_dir))
    assert re.search(r"^ ?LIVE ", picture, re.MULTILINE), picture
    assert change["finding"].get("resolved_at") is None


def _ended(run: LiveRun, times: tuple[float, float]) -> None:
    """Its last line, and what is looked at again."""
    folder = str(run.run_dir)
    last = run.text.rstrip().splitlines()[-1]
    length = f"({times[1] - times[0]:.0f} s)"
    assert re.match(r"diag: job failed \(exit \d+\) after ", last), last
    assert "; nothing open; 1 over: hang (data_loading), rank 1, " in last and length in last
    text, code = typed("replay", folder)
    words = " ".join(text.split())
    assert (
        code == 10
        and "; nothing open; 1 over: hang (data_loading), rank 1, " in words
        and f"{length};" in words
    )
    assert "OVER hang (data_loading): rank 1;" in text and not re.search(r"/proc/\d|diag dump", text)
    document = json.loads(typed("replay", "--json", folder)[0])
    shown = json.loads(typed("top", "--json", folder)[0])["report"]
    assert document["sentence"] == shown["sentence"] and over(document) == over(shown)
    assert over(document) == [("hang", "data_loading", [1], *times)] and open_now(document) == []
    picture, _ = typed("top", "--once", folder)
    assert (
        re.search(r"^ ?RECORDED ", picture, re.MULTILINE) and "OVER hang (data_loading): rank 1;" in picture
    )
