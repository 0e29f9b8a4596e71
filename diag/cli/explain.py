"""`diag explain WORDS`: the manual page of a finding, its part on a class or cause, in English or Chinese; what a
variable, an Xid, an errno or a result of NCCL or HCCL means; or what diag makes of a pasted line."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from diag.outputs import manual
from diag.text.columns import cut, pad, wrap_wide
from diag.text.errors import DiagError

_WIDEST = 110  # columns: longer lines are hard to read
_NAMES = 26  # columns of the list's first word
_FEWEST = 6  # characters of a message that is looked for in the rules' lines
_MOST_RULES = 8
_SHOWN = ("Meaning", "Finding", "What to do", "含义", "对应的诊断", "怎么办")  # of a rule's page
# What precedes a message in dmesg, in NCCL's log, in a traceback, and in the log of torch's watchdog.
_FORMS = (
    "[    1.000000] {}",
    "node:1:1 [0] NCCL WARN {}",
    "RuntimeError: {}",
    "[rank0]:[E1124 02:00:00.000000000 ProcessGroupNCCL.cpp:685] [Rank 0] {}",
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id",
        nargs="*",
        help="a finding, such as hang; a class or cause, as diag prints it: data_loading, hang/data_loading, "
        "'hang (data_loading)'; a rule; a variable (NCCL_IB_GID_INDEX), an Xid ('Xid 79'), an errno (ENOSPC), a "
        "result of NCCL or HCCL (ncclSystemError, HCCL_E_TIMEOUT); or a pasted line of a log; without one: list the findings",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON (diag.explain/1)")
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        help="language of the page (default: the setting lang, else the locale)",
    )


def rule_page(rule: str, lang: str) -> dict[str, str]:
    """The sections of a rule's page, where the id is no finding's; none where there is no such rule."""
    from diag.detectors.rules.load import load
    from diag.detectors.rules.page import sections
    from diag.launch.settings_file import OF_EVIDENCE
    from diag.settings import load as settings

    folder = settings(take=OF_EVIDENCE).rules
    known = load([folder] if folder is not None else []).by_id
    return sections(known[rule], lang) if rule in known else {}


def run(args: argparse.Namespace) -> int:
    lang = _language(args.lang)
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    asked = " ".join(args.id)
    if not args.id:
        if args.json:
            print(_json("", [_page(finding, manual.sections(finding, lang)) for finding in manual.ids()]))
            return 0
        for finding in manual.ids():
            line = f"{pad(finding, _NAMES)} {manual.meaning(finding, lang)}"
            print(cut(line, width) if os.isatty(1) else line)
        return 0
    finding, word = _taken_apart(asked)
    page = {} if word else manual.sections(finding, lang) or rule_page(asked, lang)
    name = finding if page and finding in manual.ids() else asked
    items = {} if page else _of_cause(finding, word, lang)
    if not page and (not items or word_page(asked, "en")[1]):
        return _word_or_line(asked, items, args, lang, max(40, width))
    if args.json:
        found = [_page(name, page)] if page else [_page(each, {}, advice) for each, advice in items.items()]
        print(_json(asked, found))
    elif page:
        _print_page(name, page, lang, max(40, width))
    else:
        _print_items(word or asked.lower(), items, lang, max(40, width))
    return 0


def _word_or_line(
    asked: str, items: dict[str, list[manual.Advice]], args: argparse.Namespace, lang: str, width: int
) -> int:
    """A word of the field, with the paragraphs of findings whose cause it is, and what diag finds where a log has
    the line that goes with it; else the line itself."""
    from diag.cli.nccl_meaning import meaning
    from diag.knowledge.words import line_with

    name, page = word_page(asked, lang)
    line = line_with(name) or ("" if page else asked)
    document = _read(line) if len(line.split()) > 1 else None
    known = [] if page or (document and _recognised(document)) else _rules_with(asked)
    if document and not page and not known and not _recognised(document):
        page = meaning(asked, lang)
        name, document = (asked, None) if page else (name, document)
    if not page and not known and (document is None or not document["findings"]):
        shown = ", and diag does not recognise it as a line of a log" if len(asked.split()) > 1 else ""
        raise DiagError(
            f"no finding, class, cause, rule, variable or code is called {asked!r}{shown}",
            hint=_near(asked),
            exit_code=2,
        )
    findings = document["findings"] if document and not known else []
    if args.json:
        pages = [_page(name, page)] if page else [_page(rule, rule_page(rule, lang)) for rule in known]
        pages += [_page(each, {}, advice) for each, advice in items.items()]
        print(_json(asked, pages, findings))
        return 0
    if page:
        _print_page(name, page, lang, width)
    if items:
        print()
        _print_items(asked.lower(), items, lang, width)
    for rule in known:
        print(_rule_entry(rule, lang, width))
    if document and findings:
        from diag.outputs.terminal.text import report_text

        if page:
            print(
                f"{os.linesep}{'日志里有这一行时：' if lang == 'zh' else 'if a log contains it: '}{line}{os.linesep}"
            )
        text = report_text({**document, "not_checked": []}, colour=False, width=width, lang=lang)
        print(text.partition("\n\n")[2].rstrip())
        pages_of = " | ".join(f"diag explain {one}" for one in dict.fromkeys(one["id"] for one in findings))
        print(f"{os.linesep}{'整页：' if lang == 'zh' else 'the whole page: '}{pages_of}")
    return 0


def word_page(asked: str, lang: str) -> tuple[str, dict[str, str]]:
    """The page of a word of the field; `diag doctor --env` has the same words of variables, and so the same Chinese."""
    from diag.knowledge.words import page_of

    name, page = page_of(asked)
    if lang == "en":
        return name, page
    from diag.outputs.chinese import by_line

    return name, {by_line(heading, "doctor"): by_line(text, "doctor") for heading, text in page.items()}


def _read(line: str) -> dict[str, Any]:
    """The report of these lines alone, as `diag replay` makes it. Who pastes a line often omits what precedes
    its message: where the line itself is not recognised, it is read as one of the kernel, of NCCL and of torch."""
    from diag.cli.nccl_meaning import message_of
    from diag.engine.replay import replay_text
    from diag.outputs.report import report

    first: dict[str, Any] = report(replay_text(line))
    forms = _FORMS if os.linesep not in line and not _recognised(first) else ()
    others = (report(replay_text(form.replace("{}", message_of(line)))) for form in forms)
    return next(filter(_recognised, others), first)


def _rules_with(words: str) -> list[str]:
    """The rules, nearest first, whose real lines have these words: of a message that was cut out of its line."""
    from diag.detectors.rules.load import load

    sought = " ".join(words.lower().split())
    if len(sought) < _FEWEST:
        return []
    lines = {rule.id: " ".join(one.text for one in rule.examples).lower().split() for rule in load([]).rules}
    found = [name for name, text in lines.items() if sought in " ".join(text)]
    return sorted(found, key=lambda name: len(lines[name]))[:_MOST_RULES]


def _rule_entry(rule: str, lang: str, width: int) -> str:
    """What a line with the words means, and what to do."""
    meaning, finding, *_, advice = (
        text for heading, text in rule_page(rule, lang).items() if heading in _SHOWN
    )
    lines = (line for text in (meaning, advice) for line in _indented(text, width))
    return os.linesep.join([f"{rule}: {finding}", *lines])


def _recognised(document: dict[str, Any]) -> bool:
    return any(one["id"] != "unrecognised-failure" for one in document["findings"])


def _print_page(name: str, page: dict[str, str], lang: str, width: int) -> None:
    print(name + os.linesep + "=" * len(name))
    for heading, text in page.items():
        print(os.linesep.join(["", *_section(heading, text, lang, width)]))


def _taken_apart(asked: str) -> tuple[str, str]:
    """The finding and its class or cause, as diag prints them; without a finding both are the word itself, in
    small letters.

    >>> _taken_apart("HANG"), _taken_apart("hang (data_loading)"), _taken_apart("hang/data_loading")
    (('hang', ''), ('hang', 'data_loading'), ('hang', 'data_loading'))
    """
    first, *rest = [word for word in re.split(r"[\s/():,]+", asked.lower()) if word] or [""]
    return first, rest[-1] if rest else ""


def _of_cause(finding: str, word: str, lang: str) -> dict[str, list[manual.Advice]]:
    """Finding -> the paragraphs of it that are of this class or cause."""
    found = {
        each: [item for item in manual.advice(each, lang) if item.is_of(word or finding)]
        for each in manual.ids()
        if not word or each == finding
    }
    return {each: items for each, items in found.items() if items}


def _print_items(word: str, found: dict[str, list[manual.Advice]], lang: str, width: int) -> None:
    """Each paragraph with the finding that has it; where several have it, the one on the screen shows which is
    meant."""
    blocks = []
    above: set[str] = set()
    for finding, items in found.items():
        lines = [f"{finding} ({word})", *_indented(manual.meaning(finding, lang), width)]
        texts = [item.text for item in items if item.text not in above]
        if len(texts) < len(items):
            texts.append("同上" if lang == "zh" else "as above")
        for text in texts:
            lines += ["", *_indented(f"- {text}", width)]
        above.update(texts)
        blocks.append(os.linesep.join(lines))
    print((os.linesep * 2).join(blocks))
    pages = " | ".join(f"diag explain {finding}" for finding in found)
    print(f"{os.linesep}{'整页：' if lang == 'zh' else 'the whole page: '}{pages}")


def _indented(text: str, width: int) -> Iterator[str]:
    if text.startswith("- "):
        return iter(wrap_wide(text[2:], width, "  - ", "    "))
    return iter(wrap_wide(text, width, "  "))


def _page(name: str, sections: dict[str, str], items: list[manual.Advice] | None = None) -> dict[str, object]:
    advice = [
        {"causes": list(item.causes), "classes": list(item.classes), "text": item.text}
        for item in items or ()
    ]
    return {"id": name, "sections": sections, "advice": advice}


def _json(asked: str, found: list[dict[str, object]], findings: Sequence[dict[str, Any]] = ()) -> str:
    """`findings` are of a line, in the form of diag.report/1."""
    document = {"schema": "diag.explain/1", "asked": asked, "pages": found, "findings": list(findings)}
    return json.dumps(document, indent=1, ensure_ascii=True)


def _language(chosen: str | None) -> str:
    """Chinese only where it can be shown, or was asked for by name; then with question marks, and a word of
    why."""
    from diag.cli.language import language
    from diag.text.language import CHINESE, can_show

    lang = chosen or language()
    if lang != "zh" or can_show(CHINESE, sys.stdout):
        return lang
    encoding = getattr(sys.stdout, "encoding", "") or "unknown"
    shown = "Chinese characters appear as question marks" if chosen else "the page is in English"
    print(
        f"diag: this terminal's encoding ({encoding}) cannot show Chinese, {shown}: set PYTHONUTF8=1",
        file=sys.stderr,
    )
    if chosen and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return chosen or "en"


def _section(heading: str, text: str, lang: str, width: int) -> Iterator[str]:
    yield heading + ("：" if lang == "zh" else ":")
    for line in text.splitlines():
        yield from _indented(line, width) if line else ("",)


def _near(wrong: str) -> str:
    from diag.knowledge import words
    from diag.text.suggest import did_you_mean

    finding, word = _taken_apart(wrong)
    if word and finding in manual.ids():
        of_it = [name for item in manual.advice(finding, "en") for name in (*item.classes, *item.causes)]
        return (
            did_you_mean(word, of_it, f"diag explain {finding}/{{}}")
            or f"diag explain {finding} lists its causes"
        )
    items = [item for each in manual.ids() for item in manual.advice(each, "en")]
    names = [name for item in items for name in (*item.classes, *item.causes)]
    hint = did_you_mean(finding, (*manual.ids(), *names)) if not word else ""
    hint = hint or ("" if word else did_you_mean(wrong.upper(), words.names(), "diag explain {}"))
    return hint or "diag explain lists the findings; for a whole log: diag replay LOG"
