"""What a finding's page says of a job that is started again as it was (`detectors/retry.yaml`)."""

from __future__ import annotations

from diag.detectors.retry import table

_SAY = {
    "en": {
        "yes": "may come through", "no": "to be expected again", "elsewhere": "comes through on another node",
        "unknown": "either may be",
    },
    "zh": {"yes": "可能成功", "no": "预计会再次出现", "elsewhere": "换一台机器可以成功", "unknown": "两种都可能"},
}  # fmt: skip
_ACTS = {
    "en": "`diag run --on` may end the job for {both}; for {end} end it, but not start it again.",
    "zh": "`diag run --on` 可以为 {both} 结束任务；为 {end} 只结束，不重新启动。",
}


def started_again(finding: str, lang: str) -> str:
    """In a sentence or two; empty for what is no finding.

    >>> started_again("rank-desync", "en"), started_again("ecc-error", "zh")
    ('Either may be (unknown).', '换一台机器可以成功（elsewhere）。')
    """
    row = table().get(finding)
    if row is None:
        return ""
    say, zh = _SAY[lang], lang == "zh"
    open_, close, colon, end = ("（", "）", "：", "。") if zh else (" (", ")", ": ", ".")
    parts = [f"{say[row['retryable']]}{open_}{row['retryable']}{close}"]
    for value in ("yes", "no", "elsewhere", "unknown"):
        names = [
            f"`{name}`"
            for kind in ("classes", "causes")
            for name, found in row.get(kind, {}).items()
            if found == value
        ]
        if names:
            parts.append(f"{('、' if zh else ', ').join(names)}{colon}{say[value]}{open_}{value}{close}")
    text = ("；" if zh else "; ").join(parts)
    text = text[0].upper() + text[1:] + end
    if acts := row.get("acts"):
        comma = "、" if zh else ", "
        both = comma.join(f"`{name}`" for name, kinds in acts.items() if "restart" in kinds)
        only = comma.join(f"`{name}`" for name, kinds in acts.items() if "restart" not in kinds)
        text += ("" if zh else " ") + _ACTS[lang].format(both=both, end=only)
    return text
