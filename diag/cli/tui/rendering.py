"""What the screen shows of a state besides the table: head, findings, one rank, merged stacks. Lines of a
width, no more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diag.cli.tui.line import Line, line, text_lines
from diag.cli.tui.state import Row, State
from diag.cli.tui.words import say, told
from diag.model import found
from diag.outputs.terminal.text import _body, _head, _ranks, over_head
from diag.outputs.terminal.tree_text import class_lines
from diag.outputs.view.sentence import name_of
from diag.text.columns import columns, cut, wrap, wrap_long, wrap_wide
from diag.text.sanitize import clean
from diag.text.units import format_bytes, format_quantity, format_ratio, format_seconds, format_time

_WORD_STYLES = {
    "hung": "critical",
    "dead": "critical",
    "failed": "critical",
    "held-up": "warning",
    "running": "ok",
    "finished": "ok",
}
_SOURCE_STYLES = {"LIVE": "ok", "LOST": "critical", "ENDED": "warning"}
_LEADS = re.compile(r"(?:(?:At the end of its log t|T)he job(?: is)?|Job state) ([\w-]+)")
_ALL_EVIDENCE = 24  # lines
_SHORT_EVIDENCE = 4
_LONG_BODY = 12  # lines of the chosen finding, before the list gets more
_FRAMES = 12  # innermost of a class
_THREAD_FRAMES = 40


def head_lines(state: State, source: str, about: str, width: int) -> list[Line]:
    """Two: the state as a word with the job's sentence; then how we know (LIVE, LOST, ENDED, RECORDED), since
    when, of what."""
    word = say(state.word) if say(state.word) != state.word else state.word.upper()
    sentence = _LEADS.sub("", state.report["sentence"], count=1).lstrip("; ").removesuffix(".")
    sentence = told(sentence)
    style = _WORD_STYLES.get(state.word, "bold")
    if style == "ok" and state.report["job"]["returncode"] is not None and found(state.report):
        style = "warning"  # it ended well, and not without trouble
    first = ((f" {word} ", style + " reverse"), (" " + sentence, "bold"))
    source = format_source(state, source)
    facts = [say(f"elapsed {format_seconds(state.elapsed)}")] if state.elapsed is not None else []
    if about:
        facts.insert(len(facts) if source == "RECORDED" else 0, say(about))
    if len({row.host for row in state.rows.values()}) <= 1 and state.head.get("host"):
        facts.append(say(f"on {state.head['host']}"))
    facts += [state.head[name] for name in ("run_id", "command") if state.head.get(name)]
    second = ((f" {say(source)} ", _SOURCE_STYLES.get(source, "bold")), (" " + "; ".join(facts), ""))
    return [_with_dots(first, width), _with_dots(second, width)]


def format_source(state: State, source: str) -> str:
    """LIVE is only what lives: what answers may show evidence on disk, or a job that ended."""
    if source != "LIVE":
        return source
    return (
        "RECORDED"
        if state.head.get("recorded")
        else "ENDED"
        if state.report["job"]["returncode"] is not None
        else "LIVE"
    )


def _wrapped(text: str, width: int, indent: str = "", rest: str | None = None) -> list[str]:
    return (wrap if text.isascii() else wrap_wide)(text, width, indent, rest)


def _with_dots(pieces: Line, width: int) -> Line:
    *before, (last, style) = pieces
    room = width - sum(columns(text) for text, _ in before)
    return (*before, (cut(last, max(3, room)), style))


# --- findings


def findings_pane(state: State, chosen: int, width: int, most: int, lang: str) -> list[Line]:
    """The findings in at most `most` lines: one line each, and under the chosen one its text, as far as
    there is room."""
    found = state.findings
    if not found:
        more = (
            say(f"; {len(state.report['not_checked'])} not checked (f lists them)")
            if state.report["not_checked"]
            else ""
        )
        if not state.past:
            return [line(say("  nothing found") + more, "dim" if not more else "")]
        over = [_over_title(finding, state, width) for finding in state.past[: max(1, most - 1)]]
        return [
            line(cut(say(f"  nothing open; {len(state.past)} over (f shows what was found)") + more, width)),
            *over,
        ]
    # The list gives way to the text of the chosen one, down to three lines: it can be scrolled through.
    listed = min(len(found), max(3, most - _LONG_BODY), most)
    body = _within(_blocks(found[chosen], width, lang), most - listed)
    first = min(max(0, chosen - listed + 1), len(found) - listed) if chosen >= listed else 0
    lines: list[Line] = []
    for index in range(first, first + listed):
        lines.append(_title(found[index], width, chosen=index == chosen))
        if index == chosen:
            lines += body
    return lines


def _blocks(finding: Mapping[str, Any], width: int, lang: str) -> list[list[Line]]:
    """Its summary, who, what to do, and on what evidence; in the order in which room is given to them."""
    lines = _painted(_body(finding, width, "    ", _SHORT_EVIDENCE, lang))
    summary = [one for one in lines if one[0][1] in ("bold", "")]
    return [
        summary,
        [one for one in lines if one[0][1] == "ok"],
        [one for one in lines if one[0][1] == "dim"],
    ]


def _within(blocks: list[list[Line]], room: int) -> list[Line]:
    """As many lines as there is room for: two of the advice, the rest of the summary, then more advice, then
    evidence."""
    summary, advice, evidence = blocks
    kept_advice = min(len(advice), 2, max(0, room - 2))
    kept_summary = min(len(summary), room - kept_advice)
    kept_advice = min(len(advice), room - kept_summary)
    kept_evidence = min(len(evidence), room - kept_summary - kept_advice)
    return [*_dotted(summary, kept_summary), *_dotted(advice, kept_advice), *evidence[:kept_evidence]]


def _dotted(lines: list[Line], kept: int) -> list[Line]:
    if kept <= 0 or kept >= len(lines):
        return lines[: max(0, kept)]
    text, style = lines[kept - 1][0]
    return [*lines[: kept - 1], ((text, style), (" ...", "dim"))]


def _title(finding: Mapping[str, Any], width: int, *, chosen: bool) -> Line:
    word = say(finding["severity"])
    word = word.upper() if word == finding["severity"] else word
    who = f", {_ranks(finding['ranks'])}" if finding["ranks"] else ""
    rest = f" {name_of(finding)}{who}: {told(finding['confidence'] + ' confidence')}" + (
        "" if chosen else f": {told(finding['summary'])}"
    )
    lead = "> " if chosen else "  "
    return (
        (lead, ""),
        (word, finding["severity"]),
        (cut(rest, max(3, width - columns(word) - 2)), "bold" if chosen else ""),
    )


def _over_title(finding: Mapping[str, Any], state: State, width: int) -> Line:
    return (
        ("  ", ""),
        (say("OVER"), "dim"),
        (cut(f" {told(over_head(finding, state.now))}", max(3, width - 2 - columns(say("OVER")))), "bold"),
    )


def _painted(lines: Iterable[str]) -> list[Line]:
    """Advice stands out, and evidence steps back. A line that is further in continues the line above it."""
    painted: list[Line] = []
    style, base = "bold", None
    for text in lines:
        bare = text.lstrip()
        base = len(text) - len(bare) if base is None else base
        if len(text) - len(bare) <= base:
            if bare.startswith(("do: ", "处理：")):
                style = "ok"
            elif bare.startswith("[") or re.fullmatch(r"and \d+ more|还有 \d+ 条", bare):
                style = "dim"
            elif bare.startswith(
                ("culprit: ", "waiting: ", "cause: ", "说明：", "根源：", "在等：", "原因：")
            ):
                style = ""
        painted.append(line(text, style))
    return painted


def finding_lines(finding: Mapping[str, Any], state: State, width: int, lang: str) -> list[Line]:
    """All of one."""
    over = finding["resolved_at"] is not None
    ended = ", open when the job ended" if finding["open_at_end"] else ""
    about = f"{finding['confidence']} confidence, since {format_time(finding['since'], state.now)}{ended}"
    kind = "over" if over else finding["severity"]
    first, *rest = _head(
        kind, over_head(finding, state.now) if over else f"{name_of(finding)}: {about}", False, width, lang
    )
    style = "dim" if over else finding["severity"]
    shown_kind = kind.upper() if lang == "en" else say(kind)
    lines: list[Line] = [((shown_kind, style), (first[len(shown_kind) :], "bold")), *text_lines(rest, "bold")]
    return lines + _painted(_body(finding, width, "  ", _ALL_EVIDENCE, lang))


def findings_lines(state: State, width: int, lang: str) -> list[Line]:
    """All findings, those that are over, and what could not be checked."""
    lines: list[Line] = []
    for finding in state.findings:
        lines += [*finding_lines(finding, state, width, lang), line("")]
    if not lines:
        lines = [line(say("nothing open"), "") if state.past else line(say("nothing found"), "ok"), line("")]
    for finding in state.past:
        lines += [*finding_lines(finding, state, width, lang), line("")]
    if state.report["not_checked"]:
        lines.append(line(say("Not checked:"), "bold"))
        for one in state.report["not_checked"]:
            remedy = f" -> {told(one['remedy'])}" if one["remedy"] else ""
            lines += text_lines(
                _wrapped(f"{told(one['what'])}: {told(one['reason'])}{remedy}", width, "  ", "    ")
            )
    return lines


# --- stacks


def stacks_lines(state: State, width: int) -> list[Line]:
    if not state.stacks:
        return [line(say("no stack was read yet"), "dim")]
    lines = class_lines(state.stacks, max(30, width), _FRAMES, say)
    culprits = state.culprits()
    marked = {say(one.title()) for one in state.stacks if culprits & set(one.ranks)}
    return [line(text, "critical" if any(text.strip().startswith(title[:40]) for title in marked) else
                 "" if text.startswith("    ") else "bold") for text in lines]  # fmt: skip


def rank_lines(
    row: Row, state: State, stacks: Mapping[str, Any] | None, trouble: str, width: int
) -> list[Line]:
    """What is known of a rank: how it is, what it uses, its threads. `stacks` is `diag.stacks/1`, None while
    it is asked for; `trouble` why there is none."""
    now = state.now
    named = [one for one in state.findings if row.rank in one["ranks"]]
    node = say(f" (node {row.node_rank}, local rank {row.local_rank})") if row.node_rank is not None else ""
    place = f"; {row.host}{node}" + (f", pid {row.pid}" if row.pid else "")
    lines: list[Line] = [
        ((f"rank {row.rank}: {say(row.state)}", "critical" if named else "bold"), (place, ""))
    ]
    for finding in named:
        lines.append(
            line(cut(say(f"  named by {finding['severity']} {name_of(finding)}"), width), finding["severity"])
        )
    if row.exit:
        lines.append(line(cut(f"  {told(row.exit)}", width), "critical" if row.state == "dead" else ""))
    doing = " in ".join(filter(None, [row.activity, row.where])) + (
        f", for {row.context}" if row.context else ""
    )
    facts = [f"doing: {doing or 'nothing was read yet'}"]
    if row.caller:
        facts.append(f"called from {row.caller}")
    if row.progress_at is not None:
        facts.append(f"last progress {format_seconds(now - row.progress_at)} ago")
    facts += _uses(row)
    if row.shares:
        parts = sorted(row.shares, key=lambda one: -one[1])[:4]
        facts.append("time of a step: " + ", ".join(f"{name} {format_ratio(share)}" for name, share in parts))
    for text in map(say, facts):
        lines += text_lines(_wrapped(text, width, "  ", "    "))
    return [*lines, line(""), *_threads(stacks, trouble, width)]


def _uses(row: Row) -> list[str]:
    parts = [
        f"CPU {format_ratio(row.cpu_ratio)}" if row.cpu_ratio is not None else "",
        f"RSS {format_bytes(row.rss_bytes)}" if row.rss_bytes is not None else "",
        f"peak {format_bytes(row.peak_rss_bytes)}" if row.peak_rss_bytes is not None else "",
        f"{row.threads} threads" if row.threads is not None else "",
        f"{row.children} children" if row.children is not None else "",
        f"{row.open_files} open files" if row.open_files is not None else "",
        f"state {row.process_state}" if row.process_state else "",
    ]
    uses = [f"process: {', '.join(filter(None, parts))}"] if any(parts) else []
    if row.gpu is not None:
        gpu = row.gpu
        used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
        memory = format_bytes(used) if used is not None else ""
        parts = [
            f"{format_ratio(gpu.utilization_ratio)} busy" if gpu.utilization_ratio is not None else "",
            f"{memory} of {format_bytes(total)}" if memory and total else memory,
            format_quantity(gpu.power_watts, "W") if gpu.power_watts is not None else "",
            format_quantity(gpu.temperature_celsius, "°C") if gpu.temperature_celsius is not None else "",
        ]
        uses.append(f"GPU {gpu.index} {gpu.name}: " + ", ".join(filter(None, parts)))
    return uses


def _threads(stacks: Mapping[str, Any] | None, trouble: str, width: int) -> list[Line]:
    if stacks is None and not trouble:
        return [line(say("stacks: being read"), "dim")]
    lines = (
        text_lines(_wrapped(say(f"stacks: {clean(trouble)}"), width, "", "  "), "warning") if trouble else []
    )
    stacks = stacks or {}
    reason = stacks.get("reason") or ""
    if reason:
        lines += text_lines(_wrapped(say(f"stacks: {clean(str(reason))}"), width, "", "  "), "warning")
    children = list(stacks.get("children") or ())
    for index, process in enumerate([stacks.get("main"), *children]):
        if isinstance(process, Mapping):
            lines += _process(process, width, child=index > 0)
    return lines


def _process(process: Mapping[str, Any], width: int, *, child: bool) -> list[Line]:
    who = f"child pid {process.get('pid')}" if child else f"pid {process.get('pid')}"
    what = "waiting for work" if process.get("idle") else clean(str(process.get("activity") or ""))
    head = f"{who}{', ' + what if what else ''}; innermost frame first, by {clean(str(process.get('how')))}"
    lines = [line(cut(say(head), width), "bold")]
    if child and process.get("idle"):
        return lines
    threads = [one for one in process.get("threads") or () if isinstance(one, Mapping)]
    for thread in sorted(threads, key=lambda one: not one.get("judged")):
        about = "main thread" if thread.get("main") else "thread"
        about += f" {clean(str(thread.get('name') or thread.get('thread_id') or ''))}"
        about += ", trains" if thread.get("judged") and not thread.get("main") else ""
        about += ", holds the GIL" if thread.get("owns_gil") else ""
        lines.append(line(cut(say(f"  {about}"), width), "bold" if thread.get("main") else ""))
        lines += _frames(thread, width)
    return lines


def _frames(thread: Mapping[str, Any], width: int) -> Iterator[Line]:
    frames = [clean(str(one.get("text"))) for one in thread.get("frames") or () if isinstance(one, Mapping)]
    for frame in frames[::-1][:_THREAD_FRAMES]:
        yield from text_lines(wrap_long(f"    {frame}", width, "      "))
    if len(frames) > _THREAD_FRAMES:
        yield line(say(f"    ... {len(frames) - _THREAD_FRAMES} outer frames"), "dim")


def format_next(dump: Mapping[str, Any]) -> str:
    return clean(str(dump.get("next_command") or ""))


def format_bundle(dump: Mapping[str, Any]) -> str:
    if dump.get("bundle"):
        return say(f"bundle: {clean(str(dump['bundle']))}")
    return say(f"no bundle: {clean(str(dump.get('bundle_error') or 'the run has no run directory'))}")


def dump_lines(dump: Mapping[str, Any], width: int) -> list[Line]:
    """What `diag dump` prints, with where the bundle is and what to type next before it: they are at its end
    there."""
    first = [format_bundle(dump)]
    if format_next(dump):
        first.append(
            f"{say('next:')} {format_next(dump)}   ({told(clean(str(dump.get('next_reason') or '')))})"
        )
    lines = [line(text, "bold") for each in first for text in wrap(each, width, "", "  ")]
    lines.append(line(""))
    for each in str(dump.get("screen") or "").splitlines():
        text = clean(each).rstrip()
        lead = " " * min(len(text) - len(text.lstrip()), width // 2)
        lines += text_lines(wrap(text, width, lead, lead + "  ")) if columns(text) > width else [line(text)]
    return lines


# --- the manual


def manual_lines(finding: str, lang: str, width: int) -> list[Line]:
    """The page that `diag explain` prints; of a rule of the user's too."""
    from diag.cli.explain import _section, rule_page
    from diag.outputs import manual

    page = manual.sections(finding, lang) or rule_page(finding, lang)
    if not page:
        return [line(cut(say(f"no manual page for {finding}"), width), "warning")]
    lines = [line(finding, "bold")]
    for heading, text in page.items():
        first, *rest = _section(heading, text, lang, min(max(30, width), 110))
        lines += [line(""), line(first, "bold"), *text_lines(rest)]
    return lines
