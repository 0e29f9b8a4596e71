"""What `log_outcome` looks for in lines: which launcher it was, how many ranks there are, and last words of a training."""

from __future__ import annotations

import re

from diag.text.words import ShapeWords

# ms-swift 4.6.0:   [INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2
WORLD = re.compile(r"\bworld_size[\"']?(?:=|: ?)(\d{1,7})\b")
ROOT = "Root Cause"
# torch 2.11.0, two H200, 2026-11-20: somebody, or something, asked for the Flight Recorder's dump
#   [rank1]:[E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628] [PG ID 0 ...] ProcessGroupNCCL preparing to dump debug info. ...
ASKED = "ProcessGroupNCCL preparing to dump debug info"
# The program's own last words of a whole training; of an epoch, a fold or a job script they say nothing:
#   Finished Training        Final model saved to out/m.pth        INFO:__main__:Training completed successfully!
#   Pre-training is complete.        训练完成！        INFO: Finish training: the best accuracy is 0.76 in epoch 299.
DONE = re.compile(
    r"(?i)\W{0,12}(?:(?:TRACE|DEBUG|INFO) ?\W{1,3})?(?:(?:the |model )?(?:pre-?)?(?:training|fine-?tuning)(?: is| has| was)?(?: been)?"
    r" (?:complete[d]?|finished|done)(?: successfully)?(?: (?:in|after|at) [^a-z]{0,40}[a-z]{0,10})?"
    r"|(?:finished|completed) (?:pre-?)?training|(?:预)?训练(?:已)?(?:完成|结束))\W{0,12}$"
    r"|final (?:model|weights|checkpoint) (?:was |has been )?saved\b|finish(?:ed)? (?:pre-?)?training: \S"
)
# MLPerf's logger (mlperf_logging 1.0-5.0): the run reached its target, or the next of the file begins
#   :::MLLOG {"namespace": "", ..., "key": "run_stop", "value": null, "metadata": {"file": "train.py", ..., "status": "success"}}
RUN = re.compile(r':::MLLOG \{.{1,300}"key": "run_st(op|art)"')
# In the lines before them, these show that something failed which the script then went on from.
TROUBLE = re.compile(
    r"\w(?:Error|Exception)\b|\b(?:[Ee]rror|ERROR|[Ff]atal|FATAL)\b|: command not found|No such file|can't open file|Killed"
)
DONE_WORDS = ("inal ", "omplete", "OMPLETE", "inish", "INISH", "done", "DONE", "完成", "结束")
OF_STARTERS = ("srun: ", "slurmstepd: ", "mpirun", "prterun", "-----")  # what launchers print of themselves

LAUNCHERS = (
    ("deepspeed", ("deepspeed.launcher", "[launch.py:", "deepspeed/launcher")),
    ("accelerate", ("accelerate/commands/launch.py",)),
    (
        "torchrun",
        (
            "torch/distributed/run.py",
            "torch.distributed.run",
            "elastic/multiprocessing",
            "elastic.multiprocessing",
        ),
    ),
    ("srun", ("srun: ",)),
    ("mpirun", ("mpirun noticed", "prterun")),
    ("ray", ("ray::", "ray/_private")),
)


# One of these is in each line without an error that tells of the job.
OF_THE_JOB = ShapeWords(
    "world_size", ROOT, ASKED, '"run_st', " CANCELLED AT ", "job killed", *DONE_WORDS,
    *(mark for _, marks in LAUNCHERS for mark in marks),
)  # fmt: skip
