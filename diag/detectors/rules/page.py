"""A rule as a manual page."""

from __future__ import annotations

from diag.detectors.rules.schema import Rule
from diag.model import what_holds

_HEADS = {
    "en": (
        *("Meaning", "Finding", "Evidence", "What to do", "False alarms", "References", "Versions"),
        "a line such as",
    ),
    "zh": ("含义", "对应的诊断", "证据", "怎么办", "误报", "出处", "版本", "例如这一行："),
}
_MOST_LINE = 200


def page(rule: Rule, lang: str = "en") -> str:
    """The sections as one text."""
    return "\n\n".join(f"{head}: {text}" for head, text in sections(rule, lang).items())


def sections(rule: Rule, lang: str = "en") -> dict[str, str]:
    """As those of a finding's page, in English ("en") or Chinese ("zh")."""
    heads = _HEADS["zh" if lang == "zh" else "en"]
    text = rule.zh if lang == "zh" else rule
    lines = rule.examples[0].text.splitlines()[::-1]
    line = next((line for line in lines if any(one.literal in line for one in rule.match)), "")
    finding = f"{rule.finding}{f' ({rule.cause})' if rule.cause else ''}" if rule.finding else "-"
    parts = [
        (heads[0], text.title),
        (heads[1], f"{finding}; {rule.severity}, {rule.role}"),
        (heads[2], f"{heads[7]} {line.strip()[:_MOST_LINE]}"),
        (heads[3], what_holds(text.advice, over=False)),
        (heads[4], "; ".join(text.false_positives)),
        (heads[5], "; ".join(rule.references)),
    ]
    if rule.applies:
        versions = ", ".join(f"{package} {versions}" for package, versions in rule.applies.items())
        parts.insert(2, (heads[6], versions))
    return dict(parts)
