"""What else the program's text tells of a verdict, once its cause is known: where values come from, what would end a wait, and
what other processes of the job do; and what its own log says."""

from __future__ import annotations

from diag.detectors.hang.counterparts import with_counterpart
from diag.detectors.hang.origins import with_origin
from diag.detectors.hang.own_logs import with_own_log
from diag.detectors.hang.peer_lines import with_peer_lines
from diag.detectors.hang.private_maps import with_private_map
from diag.detectors.hang.reused_keys import with_reused_key
from diag.detectors.hang.starter import with_starter
from diag.detectors.hang.stoppers import with_stopper
from diag.detectors.hang.verdict import Verdict
from diag.state.view import JobView


def with_text(verdict: Verdict, job: JobView) -> Verdict:
    for add in (
        with_origin,
        with_counterpart,
        with_peer_lines,
        with_starter,
        with_own_log,
        with_reused_key,
        with_stopper,
        with_private_map,
    ):
        verdict = add(verdict, job)
    return verdict
