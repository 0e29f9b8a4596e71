"""Of every cause of a hang, sentence and advice in Chinese, whatever is known of the job."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, assume, given, settings

from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.messages import advice_for, describe
from diag.detectors.hang.verdict import Verdict
from diag.model import what_holds
from diag.outputs.chinese import of_finding
from diag.outputs.chinese.values import lost
from diag.state.view import JobView
from tests.chinese.commands import english_in
from tests.detectors.test_hang_catalogue import CAUSES, OF_NOBODY, judged

_SHORTENED = (
    ", and so on over "  # chains of more waits than a job has: what is looked up of one text is bounded
)
# The name of a row of the table; findings have the number of their Xid.
_OF_NO_FINDING = ("xid_N",)


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(judged())
def test_sentence_and_advice_of_each_cause_are_in_chinese(drawn: tuple[Verdict, JobView, float]) -> None:
    found, job, now = drawn
    assume(all(rank in job.ranks for rank in found.culprits))
    for cause in CAUSES if found.culprits else OF_NOBODY:
        if cause in _OF_NO_FINDING:
            continue
        for waiting in {found.waiting, ()} if found.culprits else {found.waiting} - {()}:
            verdict = replace(found, cause=cause, klass=entry_of(cause).classes[0], waiting=waiting)
            finding = {
                "id": "hang",
                "cause": cause,
                "summary": describe(verdict, job, now),
                "advice": what_holds(advice_for(verdict, job), over=False),
            }
            for field in ("summary", "advice"):
                shown = of_finding(finding, field)
                assert shown != finding[field] and not english_in(shown), (
                    f"{cause}: {finding[field]}\n{shown}"
                )
                assert lost(finding[field], shown) == [], f"{cause}: {finding[field]}\n{shown}"
