"""What other tools say of the same hang, from the Flight Recorders of its ranks.

torchfrtrace (torch.distributed.flight_recorder.fr_trace) and NVRx's Flight Recorder attribution read dumps of
NCCL. gloo's lack what they need: the groups' members, the state of a finished call, names that begin with
"nccl:". So each is asked twice: `raw`, with the dumps as they are, and `filled`, with all of that put in as
NCCL's recorder writes it.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ask", "fill", "judge"]

_SECONDS = 120
_CULPRIT = re.compile(r"Culprit rank (\d+)")
_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
_UNSEEN = re.compile(r"missed FR dumps from ranks \(\{([\d, ]+)\}\)")
_NVRX = """
import json, sys
from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import CollectiveAnalyzer
answer = CollectiveAnalyzer({"fr_path": sys.argv[1]}).run_sync({"fr_path": sys.argv[1]})
print("ANSWER " + json.dumps(answer[0]))
"""


def fill(raw: Path, filled: Path) -> None:
    """The dumps of `raw` as NCCL's recorder would have written them."""
    filled.mkdir(exist_ok=True)
    for path in raw.glob("_dump_*"):
        groups = json.loads((raw / f"groups_{path.name.removeprefix('_dump_')}.json").read_text())
        dump = pickle.loads(path.read_bytes())  # written by this test's own ranks
        dump["pg_config"] = {
            name: {"name": name, "desc": item["desc"], "ranks": str(item["ranks"])}
            for name, item in groups.items()
        }
        for entry in dump["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
            if entry["retired"]:
                entry["state"] = "completed"
        (filled / path.name).write_bytes(pickle.dumps(dump, protocol=2))


def ask(raw: Path | None, filled: Path, nvrx: Path | None) -> dict[str, dict[str, Any]]:
    """tool: {named: ranks, first: ranks of its first complaint, crashed: bool, said: end of its text}."""
    answers = {"torchfrtrace filled": _torchfrtrace(filled)}
    if raw is not None:
        answers["torchfrtrace raw"] = _torchfrtrace(raw)
    if nvrx is not None:
        answers["nvrx filled"] = _nvrx(filled, nvrx)
        if raw is not None:
            answers["nvrx raw"] = _nvrx(raw, nvrx)
    return answers


def _torchfrtrace(folder: Path) -> dict[str, Any]:
    # Incomplete ranks are allowed: a stopped or dead rank leaves no dump, and without the flag it refuses to
    # look.
    words = [
        sys.executable,
        "-m",
        "torch.distributed.flight_recorder.fr_trace",
        "--allow-incomplete-ranks",
        "-p",
        "_dump_",
    ]
    code, text = _run([*words, str(folder)])
    complaints: list[list[int]] = []
    for line in text.splitlines():
        if missing := _MISSING.search(line):
            complaints.append([int(rank) for rank in missing[1].split(",")])
        elif blamed := _CULPRIT.findall(line):
            complaints.append([int(rank) for rank in blamed])
    return _answer(code, text, complaints)


def _nvrx(folder: Path, nvrx: Path) -> dict[str, Any]:
    code, text = _run([sys.executable, "-c", _NVRX, str(folder)], PYTHONPATH=str(nvrx))
    answer = next((json.loads(line[7:]) for line in text.splitlines() if line.startswith("ANSWER ")), None)
    if answer is None:
        return _answer(code or 1, text, [])
    ranks = [int(rank) for rank in re.findall(r"\d+", answer["hanging_ranks"])]
    return _answer(code, answer["analysis_text"], [ranks] if ranks else [])


def _answer(code: int, text: str, complaints: Sequence[Sequence[int]]) -> dict[str, Any]:
    named = sorted({rank for ranks in complaints for rank in ranks})
    first = sorted(set(complaints[0])) if complaints else []
    return {"named": named, "first": first, "crashed": code != 0, "said": text.strip()[-600:]}


def _run(words: Sequence[str], **environment: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env={**os.environ, **environment},
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def judge(answer: dict[str, Any], right: Sequence[frozenset[int]]) -> str:
    """right: its first complaint, or all of them together, names the culprit and nobody else; among: with
    others.

    hint: it blames nobody, and says that it lacks the dump of the culprit, which is the best that dumps can
    tell of it.
    """
    named, first = frozenset(answer["named"]), frozenset(answer["first"])
    if named in right or first in right:
        return "right"
    if any(item <= named for item in right if item):
        return "among"
    if named:
        return "wrong"
    unseen = [frozenset(map(int, ranks.split(","))) for ranks in _UNSEEN.findall(answer["said"])]
    if any(ranks in right for ranks in unseen):
        return "hint"
    return "crashed" if answer["crashed"] else "nothing"
