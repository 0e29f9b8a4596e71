"""What stands before the words of a line: each form, lines that only look so, and the same finding with and
without."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.engine.replay import replay
from diag.knowledge.log_prefix import message_of, strip_outer, without_outer

LOGS = Path(__file__).parents[1] / "captures" / "logs"
AT = 1795255200.0  # 2026-11-21 10:00:00 UTC

# What containers and launchers put before a line -> host, local rank, task, time.
OUTER = {
    "docker": ("2026-11-21T10:00:00.123456789Z ", "", None, None, AT + 0.123456789),
    "kubectl, another zone": ("2026-11-21T18:00:00.5+08:00 ", "", None, None, AT + 0.5),
    "cri": ("2026-11-21T10:00:00.25Z stderr F ", "", None, None, AT + 0.25),
    "compose": ("trainer-1  | ", "trainer-1", None, None, None),
    "kubectl --prefix": ("[pod/dpo-worker-0/pytorch] ", "dpo-worker-0", None, None, None),
    "stern": ("dpo-worker-0 pytorch ", "dpo-worker-0", None, None, None),
    "journald": ("Nov 21 10:00:00 gpu-17 train.sh[20337]: ", "gpu-17", None, None, None),
    "short-iso": ("2026-11-21T10:00:00+0000 gpu-17 train.sh[20337]: ", "gpu-17", None, None, AT),
    "srun --label": (" 3: ", "", None, 3, None),
    "mpirun 4": ("[1,2]<stderr>:", "", None, 2, None),
    "mpirun 5": ("[prterun-gpu-17-4711@1,2]<stdout>: ", "", None, 2, None),
    "torchrun --tee": ("[default5]:", "", 5, None, None),
    "pdsh": ("worker-1: ", "worker-1", None, None, None),
    "pdsh by address": ("10.0.44.113: ", "10.0.44.113", None, None, None),
    "ray": ("(RayTrainWorker pid=7230, ip=10.0.44.113) ", "10.0.44.113", None, None, None),
    "ray 1": ("(pid=34272) ", "", None, None, None),
    "coloured ray": ("\x1b[36m(TrainWorker pid=7230)\x1b[0m ", "", None, None, None),
    "four of them": (
        "[pod/dpo-worker-0/pytorch] 2026-11-21T10:00:00.5Z  3: [default1]:",
        "dpo-worker-0",
        1,
        3,
        AT + 0.5,
    ),
}
NONE = [
    "{'loss': 0.69314718, 'grad_norm': 1.10422194, 'iteration': '1/12', 'elapsed_time': '0s'}",
    "Train:   8%|8         | 1/12 [00:00<00:07,  1.55it/s]",
    "  0%|          | 0/4 [00:00<?, ?it/s]",
    "[rank1]: Traceback (most recent call last):",
    "[rank1]:[W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] Server listening to TCP :::0",
    "gpu-17:812:955 [3] NCCL INFO NET/IB : No device found.",
    " [2026-11-21 00:17:14] iteration        1/       8 | consumed samples:            8 |",
    "2026-11-20 22:48:19,123 - root - INFO - Building llama3",
    "train.py: error: unrecognized arguments: --rank 3",
    "python3: can't open file '/app/train.py': [Errno 2] No such file or directory",
    "libcudart.so.12: cannot open shared object file: No such file or directory",
    "RuntimeError: Distributed package doesn't have NCCL built in",
    "checkpoint-100 saved in 3 s",
    "step-3: loss 2.1",
    "cuda:0: 80 GiB",
    "rank      : 1 (local_rank: 1)",
    "",
]
MESSAGES = {
    "[rank1]: RuntimeError: x": ("RuntimeError: x", "", 1),
    '[rank1]:   File "/app/train.py", line 3': ('  File "/app/train.py", line 3', "", 1),
    "[rank1]:[W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] x": ("[c10d] x", "WARNING", 1),
    "[E ProcessGroupNCCL.cpp:828] [Rank 1] x": ("[Rank 1] x", "ERROR", None),
    "E1121 00:37:02.756000 20337 torch/distributed/elastic/multiprocessing/api.py:1002] x": (
        "x",
        "ERROR",
        None,
    ),
    "[INFO:swift] x": ("x", "INFO", None),
    "[2026-11-20 22:48:19,123] [WARNING] [utils.py:785:see_memory_usage] x": ("x", "WARNING", None),
    "[2023-12-13 10:00:00,123] torch.distributed.run: [WARNING] x": ("x", "WARNING", None),
    "[INFO|2025-01-20 11:29:52] llamafactory.hparams.parser:359 >> x": ("x", "INFO", None),
    "[WARNING|trainer.py:77] 2026-11-20 22:48:19,123 >> x": ("x", "WARNING", None),
    " [2026-11-21 00:17:13] x": ("x", "", None),
    "[titan] 2026-11-20 22:48:19,123 - root - INFO - x": ("x", "INFO", None),
    "2026-11-20 22:48:19 - ERROR - name - x": ("x", "ERROR", None),
    "11/21/2026 10:00:00 - INFO - __main__ - x": ("x", "INFO", None),
    "2026-11-21 10:00:00.123 | INFO     | __main__:main:12 - x": ("x", "INFO", None),
    "2026-11-21 10:00:00,123 INFO worker.py:1942 -- x": ("x", "INFO", None),
    "ERROR:torch.distributed.elastic.multiprocessing.api:x": ("x", "ERROR", None),
    "gpu-17:812:955 [3] NCCL WARN x": ("x", "WARNING", None),
    "ValueError: x": ("ValueError: x", "", None),
}


@pytest.mark.parametrize("form", OUTER)
def test_prefix_of_a_container_or_launcher_is_taken_off_and_read(form: str) -> None:
    # given a line of a traceback, indented, behind it
    prefix, host, local_rank, task, at = OUTER[form]
    text = "Traceback (most recent call last):"

    # when
    outer = strip_outer(prefix + text)

    # then
    assert (outer.text, outer.host, outer.local_rank, outer.task) == (text, host, local_rank, task)
    assert outer.at == (None if at is None else pytest.approx(at))
    assert without_outer(prefix + text) == text


@pytest.mark.parametrize("text", NONE)
def test_line_that_only_looks_like_a_prefix_stays_whole(text: str) -> None:
    assert strip_outer(text).text == text


@pytest.mark.parametrize("text", MESSAGES)
def test_words_of_a_line_stand_behind_its_loggers_prefix(text: str) -> None:
    message = message_of(text)

    assert (message.text, message.level, message.rank) == MESSAGES[text]


@pytest.mark.parametrize("form", OUTER)
def test_finding_is_the_same_behind_a_prefix(form: str, tmp_path: Path) -> None:
    # given the real end of a run whose rank 1 failed, and the same with a prefix before each line
    lines = (LOGS / "elastic_2.13.log").read_text().splitlines()
    bare, prefixed = tmp_path / "bare.log", tmp_path / "prefixed.log"
    bare.write_text("\n".join(lines) + "\n")
    prefixed.write_text("".join(f"{OUTER[form][0]}{line}\n" for line in lines))

    # when
    found = [
        [(f.id, f.ranks, f.cause, f.summary) for f in replay([path])[0].active()] for path in (bare, prefixed)
    ]

    # then
    assert found[0] == found[1]
    assert found[0][0][:2] == ("rank-died", (1,))


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=300),
        st.binary(max_size=300).map(lambda data: data.decode("utf-8", "backslashreplace")),
        st.builds(
            lambda form, text, cut: (OUTER[form][0] + text)[cut:],
            st.sampled_from(sorted(OUTER)),
            st.text(max_size=60),
            st.integers(0, 20),
        ),
    )
)
def test_any_text_is_read_without_an_error_and_what_is_left_is_its_end(text: str) -> None:
    outer = strip_outer(text)

    assert text.endswith(outer.text) or "\x1b" in text
    assert outer.text.endswith(message_of(outer.text).text)


def test_huge_line_of_almost_prefixes_takes_no_time() -> None:
    for piece in ("a-1 ", "[pod/", "1: ", "a.", "[default1]:", "(x pid=", "2026-11-21T"):
        text = piece * 20_000
        assert len(strip_outer(text).text) <= len(text)
        assert len(message_of(text).text) <= len(text)
