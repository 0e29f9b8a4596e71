"""What `--on` may ask for: only findings that say that the job will not go on by itself."""

from __future__ import annotations

from collections.abc import Sequence

from diag.detectors.retry import acting_classes, acts
from diag.launch.actions import Rule
from diag.outputs.notify.hook import problem
from diag.text.errors import DiagError

_GIVE = "give hang, or one of its classes: --on hang={action}"


def refuse(rules: Sequence[Rule]) -> None:
    """Raises DiagError for a rule that could never be followed, or must not be."""
    for rule in rules:
        why, hint = _wrong(rule)
        if why:
            raise DiagError(f"--on {rule} cannot be used: {why}", hint=hint, exit_code=2)


def _wrong(rule: Rule) -> tuple[str, str]:
    classes = acting_classes(rule.finding)
    hint = _GIVE.format(action=rule.action)
    if rule.finding == "held-up":
        return "a job that is held up may go on by itself", hint
    if not classes:
        return (
            f"nothing is done about {rule.finding}: only hang says that a job will not go on by itself",
            hint,
        )
    if rule.klass and rule.klass not in classes:
        return f"nothing is done about {rule.finding} ({rule.klass})", f"one of {', '.join(classes)}"
    if rule.klass and rule.ends_the_job and rule.kind not in acts(rule.finding, rule.klass):
        return (
            f"{rule.kind} is not done for {rule.finding} ({rule.klass})",
            f"--on {rule.finding}/{rule.klass}=end",
        )
    if rule.kind == "run" and (failed := problem(rule.action.partition(":")[2])):
        return failed, "give the path of a program that can be run"
    return "", ""
