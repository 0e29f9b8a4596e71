"""Several attempts of one program in one log: the last is judged, and the report names what the one before ended
with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diag.engine.replay import replay
from diag.outputs.report import report
from diag.outputs.terminal.text import report_text

OPENING = "loading tokenizer from ./models/base ({at} s)\nbuilding the model with 32 layers\n"
STEPS = "".join(f"step {number}/100 loss: {2 - number / 100:.3f}\n" for number in range(30))
MISSING = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    main()\nKeyError: 'content'\n"
MEMORY = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    loss.backward()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
)


def of(text: str, folder: Path) -> dict[str, Any]:
    path = folder / "nohup.out"
    path.write_text(text)
    return report(replay([path])[0])


def opening(at: float) -> str:
    return OPENING.format(at=at)


def test_last_attempt_is_judged_and_the_one_before_is_quoted(tmp_path: Path) -> None:
    first, last = opening(0.3) + MISSING, opening(0.5) + STEPS + MEMORY
    document = of(first + last, tmp_path)

    assert document["findings"][0]["id"] == "cuda-oom"
    assert not any("content" in finding["summary"] for finding in document["findings"])
    earlier: dict[str, Any] = {"count": 1, "lines": first.count("\n"), "ended_with": "KeyError: 'content'"}
    assert document["log"]["earlier_attempts"] == earlier
    quoted = document["findings"][0]["evidence"][0]
    assert f"nohup.out:{(first + last).count(chr(10))}" in str(quoted)
    assert f"Lines {earlier['lines'] + 1} to" in report_text(document, colour=False, width=200)


def test_attempt_that_runs_is_not_blamed_for_those_before(tmp_path: Path) -> None:
    document = of((opening(0.3) + MISSING) * 3 + opening(0.4) + STEPS, tmp_path)

    assert document["findings"] == []
    assert document["log"]["earlier_attempts"]["count"] == 3


def test_third_attempt_with_other_arguments_is_known_by_the_rest_of_the_opening(tmp_path: Path) -> None:
    other = opening(0.4).replace("./models/base", "./models/large")
    document = of(opening(0.3) + MISSING + opening(0.5) + STEPS + MISSING + other + STEPS, tmp_path)

    assert document["findings"] == []
    assert document["log"]["earlier_attempts"]["count"] == 2


def test_attempts_refused_by_the_argument_parser(tmp_path: Path) -> None:
    def refused(flag: str) -> str:
        usage = "usage: train.py [-h] [--lr LR]\n                [--fp16 FP16]\n"
        return f"{usage}train.py: error: argument --{flag}: expected one argument\n"

    document = of(refused("lr") + refused("fp16"), tmp_path)

    assert "--fp16" in document["findings"][0]["summary"]
    assert document["log"]["earlier_attempts"]["count"] == 1


def test_one_attempt_stays_one(tmp_path: Path) -> None:
    caught = "retry 1 of 3 failed:\n" + MISSING
    launcher = "W1121 23:12:27.382000 16877 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable\n"
    logs = {
        "an error that the program got over": opening(0.3) + caught + STEPS + MEMORY,
        "a loop that opens each round alike": (opening(0.3) * 2 + MISSING) * 3,
        "ranks that each open and end": launcher + (opening(0.3) + MISSING) * 2,
        "ranks that are named": (opening(0.3) + MISSING.replace("\n", "\n[rank0]: ")) * 2,
        "two tracebacks of one failure": opening(0.3) + MISSING + MEMORY,
    }
    for what, text in logs.items():
        assert "earlier_attempts" not in of(text, tmp_path)["log"], what
