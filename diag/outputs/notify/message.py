"""What a message says, in the run's language: one finding, several, the end of a job, or a test."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from diag.launch.launchers.secrets import hidden_in_lines, without_secrets
from diag.outputs.terminal.text import shown
from diag.outputs.view.sentence import name_of
from diag.text.sanitize import clean
from diag.text.units import format_ranks, format_seconds

# WeCom takes 2048 bytes, Discord 2000 characters, the others more.
_MOST_BYTES = 1800
_TITLE, _ADVICE, _EXCERPT = 120, 500, 160  # characters
_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class Message:
    """`kind` is what a service may colour it by: failure, warning, success or info. `facts` is the JSON that a webhook
    of the user's own gets beside the text."""

    event: str
    title: str
    body: str
    kind: str
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "diag.notice/1",
            "event": self.event,
            "title": self.title,
            "text": self.body,
            **hidden(self.facts),
        }


def compose(event: Mapping[str, Any], lang: str) -> Message:
    """`event`: what process.py hands over. Everything that comes from the job is cleaned, and its secrets are ***."""
    kind, run = event["event"], event["run"]
    if kind == "finding" and len(event["changes"]) == 1:
        (change,) = event["changes"]
        title, lines, colour = _title(change, lang), _of_change(change, lang), _colour(change)
    elif kind == "finding":
        changes = event["changes"]
        title, colour = _say(f"{len(changes)} changes of findings", lang), "warning"
        lines = _list(changes, event.get("left_out", 0), lang)
    elif kind == "end":
        title, lines, colour = _of_end(event, lang)
    elif kind == "action":
        title, lines, colour = _of_action(event["action"], lang)
    elif kind == "unwatched":
        title, colour = _say("diag's hub ended: the job is not watched any more", lang), "warning"
        lines = [
            _say(f"CMD (pid {run['pid']}) goes on; diag watch --pid {run['pid']} watches it again.", lang)
        ]
    else:
        title, lines, colour = (
            _say("test message of diag", lang),
            [_say("Messages arrive here.", lang)],
            "info",
        )
    where = _where(run, lang) if kind != "test" else []
    title = _short(f"{title} - {_of_run(run)}" if _of_run(run) else title, _TITLE)
    body = _fit([_safe(line) for line in lines], [_safe(line) for line in where])
    facts = {
        name: event[name]
        for name in ("changes", "action", "outcome", "returncode", "seconds", "left_out")
        if name in event
    }
    return Message(kind, _safe(title), body, colour, {**facts, "run": {name: run.get(name) for name in _RUN}})


_RUN = ("run_id", "host", "run_dir", "url", "pid", "started_at", "job_id", "evidence")


def hidden(value: Any) -> Any:
    """JSON with what is secret in its texts as ***."""
    if isinstance(value, str):
        return hidden_in_lines(value)
    if isinstance(value, Mapping):
        return {name: hidden(one) for name, one in value.items()}
    return [hidden(one) for one in value] if isinstance(value, list | tuple) else value


def _safe(text: str) -> str:
    return hidden_in_lines(clean(text))


# --- a finding


def _title(change: Mapping[str, Any], lang: str) -> str:
    """
    >>> finding = {"id": "hang", "class": "stopped", "ranks": [3], "severity": "critical"}
    >>> _title({"change": "opened", "finding": finding}, "en")
    'CRITICAL hang (stopped): rank 3'
    """
    finding = change["finding"]
    what = name_of(finding) + (f": {format_ranks(finding['ranks'])}" if finding["ranks"] else "")
    word = "resolved" if change["change"] == "resolved" else finding["severity"]
    word = word.upper() if lang == "en" else shown(word, lang)
    changed = f" ({_say('changed', lang)})" if change["change"] == "updated" else ""
    return f"{word} {what}{changed}"


def _of_change(change: Mapping[str, Any], lang: str) -> list[str]:
    finding = change["finding"]
    if change["change"] == "resolved":
        over = finding.get("resolved_at")
        if over is None:
            return []
        return [_say(f"It lasted {format_seconds(max(0.0, over - finding['since']))}.", lang)]
    summary, advice = finding["summary"], finding["advice"]
    if lang != "en":
        from diag.outputs.chinese import of_finding

        summary, advice = of_finding(finding, "summary"), of_finding(finding, "advice")
    lines = [summary]
    if advice:
        lines.append(f"{_lead('do:', lang)}{_short(advice, _ADVICE)}")
    for item in finding.get("evidence", ())[:1]:
        last = next((line for line in reversed(item["excerpt"].splitlines()) if line.strip()), "")
        lines.append(f"[{item['kind']}] {_short(last.strip(), _EXCERPT)}")
    return lines


def _colour(change: Mapping[str, Any]) -> str:
    if change["change"] == "resolved":
        return "success"
    return "failure" if change["finding"]["severity"] == "critical" else "warning"


def _list(changes: Sequence[Mapping[str, Any]], left_out: int, lang: str) -> list[str]:
    lines = [f"- {_title(change, lang)}" for change in changes[-_MOST_LISTED:]]
    more = len(changes) + left_out - len(lines)
    return [*([_say(f"and {more} before them", lang)] if more else []), *lines]


# --- an action


def _of_action(action: Mapping[str, Any], lang: str) -> tuple[str, list[str], str]:
    what = name_of({"id": action["finding"], "class": action["class"]})
    who = f": {format_ranks(action['ranks'])}" if action["ranks"] else ""
    acts = action["what"] == "acts"
    lead = _say("diag acts" if acts else "diag could not act", lang)
    title = f"{lead}{_colon(lang)}{action['action'].partition(':')[0]}, {what}{who}"
    return title, [action["text"]], "warning" if acts else "failure"


def _colon(lang: str) -> str:
    return ": " if lang == "en" else "："


# --- the end


def _of_end(event: Mapping[str, Any], lang: str) -> tuple[str, list[str], str]:
    code, outcome = event.get("returncode"), event.get("outcome") or {}
    after = f" after {format_seconds(event['seconds'])}" if event.get("seconds") is not None else ""
    if code is None:
        title = _say(f"the job ended{after}, exit code not known", lang)
    else:
        title = _say(f"the job {'finished' if code == 0 else 'failed'} (exit {code}){after}", lang)
    lines = []
    if acted := outcome.get("acted"):
        again = acted["action"].startswith("restart")
        lines.append(
            _say("diag ended it" + (", to start it again:" if again else ":"), lang) + f" {acted['text']}"
        )
    if event.get("killed"):
        lines.append(_say("diag itself was ended before: what follows is from its journal.", lang))
    if event.get("oom_kills"):
        lines.append(
            _say(
                f"Processes of this cgroup that the OOM killer ended since diag began: {event['oom_kills']}",
                lang,
            )
        )
    if outcome.get("step"):
        lines.append(_say(f"Last step: {outcome['step']}", lang))
    if checkpoint := outcome.get("checkpoint"):
        lines.append(_say(f"Last whole checkpoint: {checkpoint['path']}", lang))
        if code != 0:
            lines.append(_say(f"To go on from it: {checkpoint['flags']}", lang))
    lines += [f"- {_title(change, lang)}" for change in outcome.get("open", ())[:_MOST_LISTED]]
    if held := event.get("changes"):
        lines += [_say("Not told before:", lang), *_list(held, event.get("left_out", 0), lang)]
    return title, lines, "success" if code == 0 else "failure"


# --- around it


def _where(run: Mapping[str, Any], lang: str) -> list[str]:
    lines = []
    if run.get("url"):
        lines.append(f"{_lead('Page:', lang)}{run['url']}{_on_host(run, lang)}")
    if run.get("evidence"):
        lines.append(f"{_lead('Kept when it was told:', lang)}diag replay {shlex.quote(run['evidence'][-1])}")
    if run.get("run_dir"):
        lines.append(f"diag replay {shlex.quote(run['run_dir'])}")
    return lines


def _on_host(run: Mapping[str, Any], lang: str) -> str:
    address = urlsplit(run["url"])
    if address.hostname not in ("127.0.0.1", "localhost", "::1"):
        return ""
    return f" ({_lead('from elsewhere:', lang)}ssh -L {address.port}:127.0.0.1:{address.port} {run.get('host', '')})"


def _of_run(run: Mapping[str, Any]) -> str:
    """
    >>> _of_run({"job_id": "4711", "host": "gpu-17"})
    '4711, gpu-17'
    """
    return ", ".join(
        dict.fromkeys(without_secrets(str(run[name])) for name in ("job_id", "host") if run.get(name))
    )


def _say(text: str, lang: str) -> str:
    if lang == "en":
        return text
    from diag.outputs.chinese import whole

    return whole(text, "notify") or shown(text, lang)


def _lead(word: str, lang: str) -> str:
    return f"{word} " if lang == "en" else _say(word, lang)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _fit(lines: Sequence[str], last: Sequence[str]) -> str:
    """As many bytes as every service takes: where the evidence is has to be in it, so the rest is cut."""
    end = "\n".join(last)
    room = _MOST_BYTES - len(end.encode()) - 1
    text = "\n".join(lines).encode()
    if len(text) > room:
        text = text[: max(0, room - 3)].decode("utf-8", "ignore").encode() + b"..."
    return "\n".join(filter(None, (text.decode(), end)))
