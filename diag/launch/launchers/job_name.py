"""What a job is called in the labels of its metrics: one name on all its nodes, where anything gives one.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diag.launch.launchers.command import read_command

_LONGEST = 128  # a label value is in every series
# torchrun's own default of --rdzv_id, which every job without one has.
_NO_NAME = frozenset({"", "none"})


def job_name(setting: str, command: Sequence[str], environment: Mapping[str, str], run_id: str) -> str:
    """The setting, else Slurm's job, else torchrun's rendezvous id, else this node's run.

    Kubernetes gives a container no name of its job: the manifest hands it over as DIAG_JOB_ID, which is the
    setting.

    >>> job_name("", ["torchrun", "--rdzv-id=dpo-7", "t.py"], {}, "20261121-120000-abc")
    'dpo-7'
    >>> job_name("", ["torchrun", "t.py"], {"TORCHELASTIC_RUN_ID": "none"}, "20261121-120000-abc")
    '20261121-120000-abc'
    """
    candidates = (
        setting,
        environment.get("SLURM_JOB_ID", ""),
        environment.get("TORCHELASTIC_RUN_ID", ""),
        read_command(command, environment, read_text=lambda path: None).meeting.run_id,
        environment.get("PET_RDZV_ID", ""),
        run_id,
    )
    names = (
        "".join(char if char.isprintable() else "_" for char in text.strip())[:_LONGEST]
        for text in candidates
    )
    return next((name for name in names if name.lower() not in _NO_NAME), "")
