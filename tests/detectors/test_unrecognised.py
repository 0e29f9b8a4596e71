"""`unrecognised-failure`: which line of a log is the root, where no rule knows it, and where it stays silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors.precedence import _names_the_failure
from diag.engine.importers.log_import import LogImport, read_log
from diag.engine.replay import replay_records
from diag.model import Finding, Severity
from diag.text.progress_line import Progress


def found(text: str, path: Path) -> list[Finding]:
    log = path / "train.log"
    log.write_text(text)
    engine, _ = replay_records(LogImport(read_log(log, [], Progress())))
    return [finding for finding in engine.active() if finding.id == "unrecognised-failure"]


TRACEBACK = 'Traceback (most recent call last):\n  File "{file}", line {line}, in {name}\n    call()\n'


@pytest.mark.parametrize(
    ("line", "klass"),
    [
        ("KeyError: 'attention_bias'", "python"),  # CPython 3.11
        ("double free or corruption (!prev)", "native"),  # glibc 2.36
        ("mpirun: error: no slots", "scheduler"),
        (
            "node1:123:456 [0] NCCL WARN Message truncated : received 256 bytes instead of 128",
            "accelerator",
        ),  # NCCL 2.18
        ("bash: torchrun: command not found", "other"),  # bash 5.2
        ("run.sh: line 23: DATA_ROOT: unbound variable", "other"),  # bash 5.2, set -u
        ("run.sh: 23: DATA_ROOT: parameter not set", "other"),  # dash 0.5
        (
            "Program received signal SIGSEGV: Segmentation fault - invalid memory reference.",
            "native",
        ),  # gfortran 12
        ("forrtl: severe (174): SIGSEGV, segmentation fault occurred", "native"),  # Intel Fortran 2021
        ("gcc: fatal error: no input files", "other"),  # GCC 12
        ("Command '['python', 'train.py']' returned non-zero exit status 1.", "other"),  # CPython 3.11
        ("make: *** [Makefile:12: train] Error 1", "other"),  # GNU make 4.3
    ],
)
def test_line_is_classed_by_who_says_it(line: str, klass: str, tmp_path: Path) -> None:
    (finding,) = found(line + "\n", tmp_path)

    assert (finding.klass, finding.seen_alone) == (klass, True)
    assert line in finding.summary and line in finding.evidence[0].excerpt


def test_exception_that_others_were_raised_from_is_the_root_with_its_own_line(tmp_path: Path) -> None:
    text = (
        "[INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2\n"
        + TRACEBACK.format(file="/app/data.py", line=33, name="encode")
        + "mypkg.Broken: row 7 has no answer\n\n"
        + "The above exception was the direct cause of the following exception:\n\n"
        + TRACEBACK.format(file="/app/train.py", line=5, name="main")
        + "RuntimeError: the data set failed\n"
        + "usual output, which does not count anything\n" * 3
        + "[2026-11-20 22:48:19,123] [INFO] [utils.py:785:see_memory_usage] MA 0.62 GB\n"
    )
    (finding,) = found(text, tmp_path)

    assert '"mypkg.Broken: row 7 has no answer", from data.py:33 in encode' in finding.summary


def test_what_launchers_and_peers_report_comes_after_another_line(tmp_path: Path) -> None:
    (finding,) = found(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: x\nValueError: its own\n",
        tmp_path,
    )

    assert "ValueError: its own" in finding.summary


def test_heading_comes_after_the_error_below_it(tmp_path: Path) -> None:
    # the form of Spectrum MPI's and jsrun's words on Summit, 2024
    text = "Error: generator script not found at:\n  /opt/etc/generate.sh\nError: the request can never be met.\n"
    (finding,) = found(text, tmp_path)

    assert "can never be met" in finding.summary


def test_ctrl_c_is_told_apart_from_what_only_reports_a_failure(tmp_path: Path) -> None:
    traceback = TRACEBACK.format(file="/app/train.py", line=5, name="main")
    (stopped,) = found(traceback + "KeyboardInterrupt\n", tmp_path)
    (reported,) = found("Command '['python', 'train.py']' returned non-zero exit status 1.\n", tmp_path)

    assert stopped.advice.startswith("SIGINT ended it")
    assert reported.advice.startswith("This only reports")


def test_connection_that_the_other_end_refused_is_not_the_drivers(tmp_path: Path) -> None:
    # NCCL 2.7, include/socket.h
    refused = "n2:486514:486651 [1] include/socket.h:403 NCCL WARN Connect to 10.148.3.247<56821> failed : Connection refused\n"
    (finding,) = found(refused, tmp_path)
    (other,) = found("n2:1:2 [0] NCCL WARN Message truncated : received 256 bytes instead of 128\n", tmp_path)

    assert finding.advice.startswith("The other end of the connection")
    assert other.advice.startswith("The library of communication or the driver")


def test_exit_status_alone_comes_after_what_the_program_itself_printed(tmp_path: Path) -> None:
    status = "make: *** [Makefile:12: train] Error 1\n"
    (finding,) = found(status + "gcc: fatal error: no input files\n" + status, tmp_path)

    assert "no input files" in finding.summary


@pytest.mark.parametrize(
    "line",
    [
        "exec /usr/bin/bash: exec format error",  # docker 28
        "No devices were found",  # nvidia-smi 575
        "The following values were not passed to the launcher and are unknown",
    ],
)
def test_word_of_failure_in_a_short_paste_is_shown_as_info(line: str, tmp_path: Path) -> None:
    (finding,) = found(line + "\n", tmp_path)

    assert line in finding.summary
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "text",
    [
        "0 errors, no failed requests\n",
        "launch.py:236: UserWarning: Port 29500 cannot be used\n",
        "".join(f"line {number} of the program\n" for number in range(20))
        + "exec /bin/sh: exec format error\n",
        "".join(f"{{'loss': '0.6', 'global_step/max_steps': '{step}/20'}}\n" for step in (1, 2))
        + "one lookup failed\n",
    ],
    ids=["denied", "a warning", "in a longer log", "beside steps"],
)
def test_word_of_failure_is_no_finding(text: str, tmp_path: Path) -> None:
    assert found(text, tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "Command '['true']' returned exit status 0.\n",
        "[INFO:swift] KeyError: 'x'; it is not used\n",
        "[INFO:swift] [CHOSEN_INPUT] <|im_start|>user\nKeyError: 'of somebody in the data'\n",
        "the model said: no error was found\n",
        "Exception ignored in: <function f at 0x7f>\n"
        + TRACEBACK.format(file="/a.py", line=1, name="f")
        + "KeyError: 'x'\n",
        "",
    ],
    ids=["no failure", "logged as usual", "in a sample of the data", "a sentence", "ignored", "nothing"],
)
def test_silent(text: str, tmp_path: Path) -> None:
    assert found("a line before it\n" + text, tmp_path) == []


def test_what_another_finding_names_is_not_said_twice(tmp_path: Path) -> None:
    assert found("OSError: [Errno 28] No space left on device\n", tmp_path) == []


LOGGING = (
    "10it [00:07,  1.39it/s]--- Logging error ---\n"
    + TRACEBACK.format(file="/usr/lib/python3.11/logging/__init__.py", line=377, name="getMessage")
    + "TypeError: not all arguments converted during string formatting\n"
    + 'Call stack:\n  File "/app/test.py", line 110, in <module>\n    main()\n'
    + "Message: 'You seem to be using the pipelines sequentially'\nArguments: (<class 'UserWarning'>,)\n"
)  # CPython 3.11
CLOSING = (
    "r7715:220781:220905 [1] proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable\n"
    "r7715:220781:220905 [1] proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 1, res=3, closed=0\n"
    "r7715:220781:220905 [1] proxy.cc:1521 NCCL WARN [Proxy Service 1] Failed to execute operation Close from rank 1, retcode 3\n"
)  # NCCL 2.21
AT_EXIT = (
    "Error in atexit._run_exitfuncs:\n"
    + TRACEBACK.format(file="/a.py", line=1, name="close")
    + "ValueError: I/O operation on closed file\n"
)  # CPython 3.11


@pytest.mark.parametrize("text", [LOGGING, CLOSING, AT_EXIT], ids=["logging", "nccl closes", "atexit"])
def test_what_ends_nothing_is_no_finding(text: str, tmp_path: Path) -> None:
    assert found("usual output\n" * 30 + text + "{'rouge1': 0.1666}\n", tmp_path) == []


def test_nccl_is_heard_beside_what_it_says_while_processes_go(tmp_path: Path) -> None:
    line = "n1:1:2 [0] NCCL WARN Message truncated : received 256 bytes instead of 128\n"
    (finding,) = found("usual output\n" * 30 + line + CLOSING, tmp_path)

    assert "Message truncated" in finding.summary


def test_shell_that_reads_no_further_comes_before_files_that_were_not_found(tmp_path: Path) -> None:
    missing = "find: '/data/CM21': No such file or directory\n" * 5
    (finding,) = found(missing + "job.sh: line 98: syntax error: unexpected end of file\n", tmp_path)

    assert "unexpected end of file" in finding.summary


def test_exception_is_found_where_a_paste_lost_the_indents(tmp_path: Path) -> None:
    text = (
        'File "/app/serialization.py", line 359, in load\n return getattr(obj, name)(index)\n'
        ' File "/app/npu.py", line 214, in _lazy_init\n _npu_init()\n RuntimeError: error code is 500001\n'
    )
    (finding,) = found(text, tmp_path)

    assert "RuntimeError: error code is 500001" in finding.summary


def test_pod_that_has_a_node_waits_for_none(tmp_path: Path) -> None:
    waits = "Warning  FailedScheduling  21m  default-scheduler  0/3 nodes: 3 pod has unbound PersistentVolumeClaims\n"
    assigned = "Normal  Scheduled  21m  default-scheduler  Successfully assigned default/job-0 to node-1\n"

    assert "FailedScheduling" in found(waits, tmp_path)[0].summary
    assert found(waits + assigned, tmp_path) == []


def test_compilers_word_stands_for_the_source_it_refuses(tmp_path: Path) -> None:
    source = "  #ifdef __HIPCC__\n" + "  for (int j=0; j<vec_size; j++){\n" * 40
    text = (
        "[INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2\n"
        + TRACEBACK.format(file="/app/init.py", line=16, name="init")
        + "RuntimeError:\n"
        + source
        + "nvrtc: error: invalid value for --gpu-architecture (-arch)\n"
    )
    (finding,) = found(text, tmp_path)

    assert "RuntimeError: nvrtc: error: invalid value for --gpu-architecture" in finding.summary


PYXIS = """pyxis: importing docker image ...
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing contents of log file ...
slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: hpc-pg0-2: task 1: Exited with exit code 1
"""


def everything(text: str, path: Path) -> list[Finding]:
    log = path / "train.log"
    log.write_text(text)
    engine, _ = replay_records(LogImport(read_log(log, [], Progress())))
    return list(engine.active())


def test_report_of_a_container_is_read_above_that_its_task_ended(tmp_path: Path) -> None:
    # pyxis 0.9, enroot 3.3 (public report)
    first, death = sorted(everything(PYXIS, tmp_path), key=lambda finding: finding.id, reverse=True)

    assert first.id == "unrecognised-failure" and "container start failed" in first.summary
    assert "`/bin/bash`" in first.advice and "--no-container-entrypoint" in first.advice
    assert "enroot-switchroot" in first.evidence[0].excerpt and "srun" not in first.evidence[0].excerpt
    assert death.summary.endswith("see finding unrecognised-failure for the reason")


def test_that_a_task_ended_says_no_more_than_its_death(tmp_path: Path) -> None:
    text = "epoch 1 done\nsrun: error: gpu-17: task 1: Exited with exit code 1\n"

    assert [finding.id for finding in everything(text, tmp_path)] == ["rank-died"]


def test_code_of_an_accelerator_is_read_above_the_abort_that_follows_it(tmp_path: Path) -> None:
    # CANN 7.0 (public report)
    text = (
        "EH9999: Inner Error!\n"
        "EH9999  [Init][Env]init env failed![FUNC:ReportInnerError][FILE:log_inner.cpp][LINE:145]\n"
        "Aborted (core dumped)\n"
    )

    findings = {finding.id: finding for finding in everything(text, tmp_path)}

    assert "init env failed" in findings["unrecognised-failure"].summary
    assert findings["rank-died"].advice.startswith("See finding unrecognised-failure")


def test_stack_of_a_debugger_shows_where_an_interrupted_program_stood(tmp_path: Path) -> None:
    # gdb 12 (public report)
    text = (
        "Waiting on the event\n^C\n"
        'Thread 1 "zello_hang" received signal SIGINT, Interrupt.\n'
        "0x00007ffff7bef23b in sched_yield () at ../sysdeps/unix/syscall-template.S:120\n"
        "120     ../sysdeps/unix/syscall-template.S: No such file or directory.\n"
        "(gdb) bt\n"
        "#0  0x00007ffff7bef23b in sched_yield () at ../sysdeps/unix/syscall-template.S:120\n"
        "#1  0x00007ffff733197a in L0::EventImp::hostSynchronize(unsigned long) () from /usr/local/lib/libze_intel_gpu.so.1\n"
        "#2  0x00007ffff7f15b6e in zeEventHostSynchronize (hEvent=0x55, timeout=18446744073709551615) at /src/ze_libapi.cpp:2277\n"
        "#3  0x000055555555d7a8 in main (argc=1, argv=0x7ffe) at zello_hang.cpp:113\n"
    )

    (finding,) = found(text, tmp_path)

    assert "it was in `zeEventHostSynchronize, called at zello_hang.cpp:113`" in finding.advice
    assert "#2" in finding.evidence[0].excerpt


def test_of_exceptions_that_nobody_took_the_kind_at_the_end_is_the_root(tmp_path: Path) -> None:
    # asyncio of CPython 3.10
    def unretrieved(error: str) -> str:
        task = "future: <Task finished name='Task-7' coro=<ask() done, defined at /app/ask.py:3>>\n"
        return (
            "ERROR: Task exception was never retrieved\n"
            + task
            + TRACEBACK.format(file="/app/ask.py", line=9, name="ask")
            + f"{error}\n"
        )

    text = unretrieved("NameError: name 'ask_all' is not defined") * 2 + 3 * unretrieved(
        "openai.APIStatusError: Error code: 402"
    )

    summaries = " ".join(finding.summary for finding in everything(text, tmp_path))

    assert "Error code: 402" in summaries and "NameError" not in summaries


def test_rule_for_what_follows_from_an_exception_does_not_name_that(tmp_path: Path) -> None:
    # datasets 2.14
    wrapper = "datasets.builder.DatasetGenerationError: An error occurred while generating the dataset"
    (alone,) = everything(f"{wrapper}\n", tmp_path)
    (raised,) = found("SchemaInferenceError: Please pass `features` when writing data\n", tmp_path)
    (same,) = found("KeyError: 'text'\n", tmp_path)

    assert alone.id == "dataset-format" and alone.consequence
    assert not _names_the_failure(alone, raised)
    assert _names_the_failure(alone, replace(same, summary=f'"{wrapper}"; no rule knows it'))


def _steps(first: int, last: int) -> str:
    """As programs with loggers of their own write them; of a log on disk only some of each hundred are looked at at once."""
    return "".join(
        f"[2023-05-19 20:{number // 60:02}:{number % 60:02},395][agents.sac][INFO] - Sample {number * 1000}, up {number * 50}, "
        f"reward -0.0{number % 7}, pi loss -3.{number % 100:02}\n"
        for number in range(first, last)
    )


_TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/pretrain.py", line 173, in estimate\n    th.bmm(a, b)\nRuntimeError: batch1 must be a 3D tensor\n'
)
# Hydra 1.2 below what the program itself logs.
_RAISED = (
    "[2023-05-19 20:09:43,494][__main__][ERROR] - Error in training loop\n"
    f"{_TRACEBACK}Error executing job with overrides: []\n{_TRACEBACK}"
    "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
)


def test_steps_that_stand_above_an_error_and_were_looked_at_later_do_not_go_on_from_it(
    tmp_path: Path,
) -> None:
    assert [finding.summary[:41] for finding in found(_steps(1, 80) + _RAISED, tmp_path)] == [
        '"RuntimeError: batch1 must be a 3D tensor'
    ]


def test_steps_below_an_error_that_are_looked_at_late_do_go_on_from_it(tmp_path: Path) -> None:
    assert found(_steps(1, 70) + _RAISED + _steps(70, 90), tmp_path) == []


EVENTS = "Events:\n  Type     Reason   Age   From             Message\n  ----     ------   ----  ----             -------\n"


def test_event_that_kubernetes_calls_a_warning_is_shown_whoever_reports_it(tmp_path: Path) -> None:
    warned = "  Warning  Pending  10s   kueue-admission  couldn't assign flavors: insufficient unused quota for cpu\n"

    (finding,) = found(EVENTS + warned, tmp_path)

    assert finding.severity is Severity.INFO and "insufficient unused quota" in finding.summary
    assert finding.advice.startswith("Kubernetes keeps this event as a warning")


def test_usual_events_are_no_finding(tmp_path: Path) -> None:
    usual = "  Normal   Pulled   10s   kubelet          Container image already present on machine\n"

    assert found(EVENTS + usual, tmp_path) == []
