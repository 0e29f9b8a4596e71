"""What the rules say of a job's log: the first real error, and nothing of what only follows, was survived or
was printed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.detectors.rank_died import RankDiedDetector
from diag.detectors.rules.load import packaged
from diag.detectors.rules.ruleset import RuleSet
from diag.detectors.rules.schema import Rule
from diag.detectors.signatures import SignatureDetector
from diag.engine.replay import replay
from diag.model import Change, ChangeKind, Confidence
from diag.model.observations import Interrupted, Iteration, KernelLine, LogLine
from tests.facts import Story

MISSING = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 3, in <module>',
    "    import apex",
    "ModuleNotFoundError: No module named 'apex'",
)
PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17577."
SAMPLE = (
    "[INFO:swift] [CHOSEN_INPUT] <|im_start|>user",
    "Why does this fail?",
    *MISSING,
    "<|im_end|>",
    "[INFO:swift] model loaded",
)
IGNORED = ("Exception ignored in: <function Pool.__del__ at 0x7f2c>", *MISSING)


def says(story: Story, rank: int | None, *lines: str) -> None:
    for line in lines:
        story.tell(LogLine(rank, "stderr", f"[rank{rank}]: {line}" if rank is not None else line))


def fails(story: Story, *ranks: int) -> None:
    for rank in ranks:
        story.exit(rank, code=1)
    story.wait(5.0)


def of_rules(story: Story) -> list[str]:
    return [finding.id for finding in story.findings() if finding.rule]


def test_first_real_error_is_named_with_its_rank_and_what_follows_is_only_evidence() -> None:
    story = Story()

    says(story, 0, *MISSING[:2], PEER)
    says(story, 1, *MISSING)
    fails(story, 1, 0)

    found = story.the("missing-module")
    assert (found.ranks, found.rule, found.confidence) == ((1,), "missing-module-apex", Confidence.HIGH)
    assert "rank 1 has no apex" in found.summary and "github.com/NVIDIA/apex" in found.advice
    assert of_rules(story) == ["missing-module"]
    assert story.findings()[0] is found, "the cause is read before the rank's death"


# CPython 3.11: what follows the module's name is its own
@pytest.mark.parametrize(
    ("module", "rule", "says_so"),
    [
        ("apex", "missing-module-apex", "github.com/NVIDIA/apex"),
        ("amp_C", "missing-module-apex", "APEX_CUDA_EXT=1"),
        ("fused_layer_norm_cuda", "missing-module-apex", "APEX_CUDA_EXT=1"),
        ("fused_weight_gradient_mlp_cuda", "missing-module-apex", "--gradient_accumulation_fusion false"),
        ("flash_attn_2_cuda", "missing-module-flash-attn", "the wheel that names"),
        ("flash_attn", "missing-module-flash-attn", "pip install flash-attn --no-build-isolation"),
        ("grouped_gemm", "missing-module-grouped-gemm", "git+https://github.com/fanshiqing/grouped_gemm"),
        ("cv2", "missing-module-other-name", "cv2 is opencv-python-headless"),
        ("yaml", "missing-module-other-name", "yaml is PyYAML"),
        ("src", "missing-module", "Is src your own"),
        ("utils", "missing-module", "Is utils your own"),
        ("msgspec", "missing-module", "may be called otherwise"),
        ("a.b.c", "missing-module-part", "Not a missing package: a.b is there"),
        (
            "datasets.utils'; 'datasets' is not a package",
            "missing-module-part",
            "or a folder or file of that name of your own",
        ),
        ("megatron.training", "swift-megatron-training-missing", "MEGATRON_LM_PATH"),
        ("megatron.core.models.hybrid", "megatron-core-module-gone", "another megatron-core"),
    ],
)
def test_for_a_missing_module_no_name_of_a_package_is_invented(module: str, rule: str, says_so: str) -> None:
    story = Story()
    line = f"ModuleNotFoundError: No module named '{module}" + ("" if "'" in module else "'")

    says(story, 1, *MISSING[:2], "    import it", line)
    fails(story, 1)

    (found,) = [one for one in story.findings() if one.rule]
    assert found.rule == rule and says_so in found.advice
    assert f"pip install {module}" not in found.advice.replace("pip install flash-attn", "")
    assert "pip install" not in packaged().by_id[rule].zh.advice or rule not in (
        "missing-module",
        "missing-module-part",
    )


def test_line_without_a_rank_is_of_the_only_rank_that_failed_by_itself() -> None:
    story = Story()

    says(story, None, *MISSING)
    story.exit(1, code=1)
    story.exit(0, signal=15)
    story.wait(5.0)

    assert story.the("missing-module").ranks == (1,)


@pytest.mark.parametrize(
    "lines",
    [SAMPLE, ("ModuleNotFoundError: No module named 'apex'",), IGNORED],
    ids=["sample", "no-traceback", "ignored"],
)
def test_error_that_is_only_printed_is_none(lines: Sequence[str]) -> None:
    story = Story()

    says(story, None, *lines)
    fails(story, 1)

    assert of_rules(story) == []


def test_error_that_the_job_outlives_is_none() -> None:
    story = Story()

    says(story, None, *MISSING)
    for step in range(3):
        story.tell(Iteration(0, step + 1, 100, f"{step + 1}/100"))
        story.wait(1.0)
    fails(story, 1)

    assert of_rules(story) == []


def test_error_that_a_loop_with_lines_of_its_own_outlives_is_none() -> None:
    story, dice = Story(), random.Random(1)

    for step in range(1, 21):
        story.wait(dice.uniform(1, 2))
        says(story, None, f"step {step}/1000 loss {dice.random():.4f}", *(MISSING if step == 15 else ()))
    fails(story, 1)

    assert of_rules(story) == []


def test_line_of_a_rank_that_is_behind_does_not_show_that_the_job_went_on() -> None:
    story = Story()

    for rank, step in ((0, 8), (0, 9), (1, 7)):
        story.tell(Iteration(rank, step, 100, f"{step}/100"))
    says(story, 0, *MISSING)
    for step in (8, 9):
        story.tell(Iteration(1, step, 100, f"{step}/100"))
    fails(story, 0)

    assert of_rules(story) == ["missing-module"]


# Slurm 22.05.8, time limit of a job under `diag run`, torch 2.13.0: slurmstepd sends SIGTERM to every process
# of the step.
WORKER = "RuntimeError: DataLoader worker (pid 10775) is killed by signal: Terminated. "


@pytest.mark.parametrize("read_first", [False, True], ids=["signal-first", "line-first"])
def test_data_worker_that_the_signal_to_the_whole_job_ended_is_none(read_first: bool) -> None:
    story = Story()

    if read_first:
        says(story, 0, MISSING[0], WORKER)
        story.wait(0.2)
        story.tell(Interrupted(None, 15))
    else:
        story.tell(Interrupted(None, 15))
        story.wait(0.2)
        says(story, 0, MISSING[0], WORKER)
    fails(story, 0, 1)

    assert of_rules(story) == []


def test_data_worker_that_somebody_ended_while_nobody_ended_the_job_is_named() -> None:
    story = Story()

    says(story, 0, MISSING[0], WORKER)
    fails(story, 0)

    assert of_rules(story) == ["dataloader-worker-died"]


def test_error_of_a_job_that_takes_its_time_after_the_signal_is_named() -> None:
    story = Story()

    story.tell(Interrupted(None, 15))
    story.wait(25.0)
    says(story, 0, *MISSING)
    fails(story, 0)

    assert of_rules(story) == ["missing-module"]


def test_error_of_a_healthy_job_is_none() -> None:
    story = Story()

    says(story, None, *MISSING)
    story.wait(600.0)

    assert of_rules(story) == []


def test_caught_error_comes_after_the_one_that_nobody_caught() -> None:
    story = Story()

    says(story, None, *MISSING)
    says(story, 1, *MISSING[:3], "ModuleNotFoundError: No module named 'our_engine'")
    fails(story, 1)

    assert "our_engine" in story.the("missing-module").summary


def test_rule_is_silent_beside_a_detector_that_names_the_same() -> None:
    story = Story()
    says(story, 1, *MISSING)
    story.wait(1.0)
    story.exit(1, code=1)
    story.wait(5.0)
    opened = story.the("missing-module")

    # when: a detector, which knows more than a line, names it too
    class Precise:
        name = "precise"
        listens = ()

        def check(self, now: float, job: object) -> list[object]:
            from dataclasses import replace

            return [replace(opened, rule="", summary="by name")]

        def not_checked(self, job: object) -> tuple[()]:
            return ()

    story.engine._detectors = [*story.engine._detectors, Precise()]  # type: ignore[list-item]
    changes: list[Change] = story.engine.advance(story.now + 2.0)

    assert [finding.summary for finding in story.findings() if finding.id == "missing-module"] == ["by name"]
    assert ChangeKind.RESOLVED not in {change.kind for change in changes}


def test_line_of_the_kernels_log_is_read_too() -> None:
    story = Story()

    story.tell(KernelLine(None, "[ 4711.120001] nfs: server filer-3 not responding, still trying"))
    story.wait(2.0)

    assert story.the("io-blocked").evidence[0].kind == "kmsg"


def test_server_that_answers_again_is_none() -> None:
    story = Story()

    story.tell(KernelLine(None, "[ 4711.120001] nfs: server filer-3 not responding, still trying"))
    story.tell(KernelLine(None, "[ 4712.120001] nfs: server filer-3 OK"))
    story.wait(2.0)

    assert of_rules(story) == []


def test_server_that_answered_is_none_whenever_it_answers_again() -> None:
    story = Story()

    story.tell(KernelLine(None, "[ 10.0] nfs: server filer-3 OK"))
    story.wait(1000.0)
    story.tell(KernelLine(None, "[ 1010.0] nfs: server filer-3 not responding, still trying"))
    story.wait(5.0)
    opened = of_rules(story)
    story.tell(KernelLine(None, "[ 1015.0] nfs: server filer-3 OK"))
    story.wait(1000.0)
    story.tell(KernelLine(None, "[ 2015.0] nfs: server filer-3 OK"))
    story.wait(2.0)

    assert opened == ["io-blocked"] and of_rules(story) == []

    story.wait(1000.0)
    story.tell(KernelLine(None, "[ 3015.0] nfs: server filer-3 not responding, still trying"))
    story.wait(2.0)

    assert of_rules(story) == ["io-blocked"], "it is away again"


def test_error_that_was_survived_once_is_named_when_the_job_ends_of_it() -> None:
    story = Story()

    says(story, 0, *MISSING)
    for number in range(1, 5):
        story.wait(60.0)
        story.tell(Iteration(0, number, 100, ""))
    says(story, 0, *MISSING)
    fails(story, 0)

    assert of_rules(story) == ["missing-module"]


def test_word_of_kubernetes_in_a_sentence_is_none() -> None:
    story = Story()

    says(story, None, "Tip: if your pod is OOMKilled, raise its limit")
    story.wait(5.0)
    assert of_rules(story) == []

    says(story, None, "dpo-worker-1   0/1     OOMKilled   0          12m")
    story.wait(5.0)
    assert of_rules(story) == ["host-oom"]


def test_ranks_that_the_line_blames_are_the_culprits() -> None:
    given = packaged().by_id["missing-module"].model_dump(by_alias=True, mode="json")
    given |= {"id": "absent", "kind": "line", "summary": "ranks {culprits} did not come", "advice": "look at them",
              "match": [{"literal": "failed to pass", "regex": r"Ranks? (?P<culprits>[\d, ]+) failed to pass"}]}  # fmt: skip
    story = Story([SignatureDetector(RuleSet([Rule.model_validate(given)]))])

    story.tell(
        LogLine(0, "stderr", "[rank0]: RuntimeError: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms")
    )
    fails(story, 0)

    assert [(finding.ranks, finding.summary[:17]) for finding in story.findings()] == [
        ((1, 3), "ranks 1, 3 did no")
    ]


def test_line_that_only_a_rule_knows_is_found_among_plain_ones(tmp_path: Path) -> None:
    given = packaged().by_id["missing-module"].model_dump(by_alias=True, mode="json")
    given |= {"id": "quokka", "kind": "line", "when": "always", "summary": "a quokka came by", "advice": "wave to it",
              "match": [{"literal": "quokka near"}]}  # fmt: skip
    log = tmp_path / "job.log"
    log.write_text(
        "\n".join(
            [*(f"line {number} of many" for number in range(500)), "a quokka near the rack"] + ["on"] * 500
        )
    )

    engine, _, _ = replay([log], rules=RuleSet([Rule.model_validate(given)]))

    assert [finding.rule for finding in engine.active()] == ["quokka"]


def test_rule_for_the_last_words_of_a_rank_gives_its_death_cause_and_advice() -> None:
    given = packaged().by_id["missing-module"].model_dump(by_alias=True, mode="json")
    given |= {"id": "lambda-pickled", "finding": "rank-died", "cause": "cannot_pickle", "summary": "{who} pickled a lambda",
              "advice": "make it a function of a module", "match": [{"literal": "Can't pickle <function <lambda>"}]}  # fmt: skip
    story = Story([RankDiedDetector(), SignatureDetector(RuleSet([Rule.model_validate(given)]))])

    says(
        story,
        1,
        *MISSING[:3],
        "_pickle.PicklingError: Can't pickle <function <lambda> at 0x7f2c>: attribute lookup failed",
    )
    fails(story, 1)

    (found,) = story.findings()
    assert (found.cause, found.advice, found.rule) == ("cannot_pickle", "make it a function of a module", "")


def test_line_with_half_of_a_surrogate_pair_is_read_like_any_other() -> None:
    """Journals are JSON, in which a stranger can write one; RE2 takes no such text."""
    story = Story()

    says(story, 1, *MISSING[:3], "ModuleNotFoundError: No module named 'apex' \ud800")
    fails(story, 1)

    assert of_rules(story) == ["missing-module"]
