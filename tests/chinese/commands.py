"""What commands say beside findings, for the test that all of it has Chinese: doctor's lines and what is recorded of
them, `--help`, errors, the pages of `diag explain` on words of the field."""

from __future__ import annotations

import argparse
import ast
import errno
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from diag.cli.chinese_help import say
from diag.cli.explain import word_page
from diag.cli.main import make_parser
from diag.knowledge import table as knowledge
from diag.knowledge.env_lint import (
    invented,
    nccl_variables,
    removed_from_nccl,
    renamed_in_torch,
    torch_variables,
)
from diag.knowledge.words import known_variables, names, page_of
from diag.knowledge.xids import xids
from diag.outputs.chinese import by_line
from diag.preflight.estimate import estimate, look
from diag.preflight.estimate.report import text as estimate_text
from diag.preflight.line import table
from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.reading import read_text
from diag.text.tables import load_table
from tests.preflight.wrong_manifests import RIGHT, WRONG

DIAG = Path(__file__).parents[2] / "diag"
_CHINESE = re.compile("[\u4e00-\u9fff]")
# Four words in a row are a sentence; names of programs and packages stand alone.
_ENGLISH = re.compile(r"(?<![\w/.'=-])(?:\b[a-z]{2,}\b[ ,:;]+){3}(?:[a-z]{2,}|\W)")
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^']*'|\([^()]*\)|（[^（）]*）|\S*pip install.*")


def english_in(shown: str) -> bool:
    """Whether a sentence of a shown text is English still."""
    return any(_ENGLISH.search(_QUOTED.sub("", line)) for line in shown.split("\n"))


def doctor_templates() -> Iterator[str]:
    """Lines of the tables, with x in the places of values."""
    for path in sorted((DIAG / "preflight/lines").glob("*.yaml")):
        for entry in table(path.stem).get("lines", {}).values():
            for key, text in entry.items():
                if key not in ("id", "adds"):
                    yield _filled(text)


def lint_texts() -> Iterator[str]:
    """What is wrong with a variable's value, and what to do."""
    for rows in (knowledge("env_lint")["harmful"], knowledge("env_lint")["no_effect"]):
        for row in rows:
            yield from (_filled(row["does"].replace("{here}", "")), row["instead"])


def _filled(text: str, value: str = "x1") -> str:
    return re.sub(r"\{[A-Za-z_][^{}]*\}", value, text).replace("{{", "{").replace("}}", "}")


def recorded_lines() -> Iterator[str]:
    """What doctor says of each wrong manifest."""
    for changes, *_ in WRONG.values():
        text = RIGHT
        for old, new in changes:
            text = text.replace(old, new)
        documents, unread = read_text(text, "job.yaml")
        for line in (*unread, *manifest_lines(documents)):
            yield from (line.said, line.remedy)


def help_texts() -> Iterator[str]:
    yield from _of_parser(make_parser(None))


def _of_parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (text for text in (parser.description, parser.epilog) if text)
    for group in parser._action_groups:
        yield group.title or ""
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            yield action.help
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _of_parser(one)


def errors() -> Iterator[str]:
    """Messages and hints of the errors that code raises, with 1 in the places of values."""
    for path in sorted(DIAG.rglob("*.py")):
        text = path.read_text()
        if "DiagError(" not in text and "ArgumentTypeError(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            called: Any = getattr(node, "func", None)
            if getattr(called, "id", getattr(called, "attr", "")) in ("DiagError", "ArgumentTypeError"):
                assert isinstance(node, ast.Call)
                hints = [word.value for word in node.keywords if word.arg == "hint"]
                for each in (*node.args[:1], *hints):
                    yield from _texts(each)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "1" for one in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        for one in node.values:
            yield from _texts(one)


def terms() -> Iterator[str]:
    """Names and formulas of an estimate's terms."""
    for term in load_table(DIAG / "preflight/estimate/terms.yaml").values():
        yield from (_filled(term["name"], "1"), _filled(term["formula"], "1"))


def keys() -> Iterator[str]:
    """What `diag top` says of its keys."""
    texts = load_table(DIAG / "cli/tui/keys.yaml")
    yield from texts["marks"]
    for _, what in (*texts["main"], *texts["within"], *texts["help"]):
        yield what


def estimated() -> Iterator[str]:
    """An estimate as it is shown, line by line."""
    command = [
        "megatron",
        "rlhf",
        "--rlhf_type",
        "dpo",
        "--model",
        "Qwen/Qwen3-8B",
        "--tensor_model_parallel_size",
        "2",
    ]
    machine = look("40GiB", "300GiB", 8)
    found = estimate(command, {"NPROC_PER_NODE": "8"}, machine=machine, nodes=None, model="", ranks=None)
    yield from estimate_text(found, say=partial(by_line, of="estimate")).split("\n")


def words() -> Iterator[str]:
    """What `diag explain` has a page on, and variables with values that it says something of."""
    variables = {*known_variables(), *nccl_variables(), *torch_variables(), *renamed_in_torch()}
    variables |= {*removed_from_nccl(), *invented()}
    yield from (*variables, *names(), *errno.errorcode.values(), *(f"Xid {number}" for number in xids()))
    for name in variables:
        yield from (f"{name}={value}" for value in ("0", "1", "true", "x"))
    for rows in (knowledge("env_lint")["harmful"], knowledge("env_lint")["no_effect"]):
        for row in rows:
            for name in row["variables"]:
                yield from (f"{name}={value}" for value in _values(row.get("when", {})))


def _values(when: dict[str, Any]) -> Iterator[str]:
    yield from map(str, when.get("is", ()))
    yield from (str(number) for number in when.get("number", ()) if isinstance(number, int))


def pages() -> dict[str, str]:
    """English heading or text -> as it is shown in Chinese."""
    found = {}
    for word in words():
        (_, english), (_, chinese) = page_of(word), word_page(word, "zh")
        for (heading, text), (shown_heading, shown) in zip(english.items(), chinese.items(), strict=True):
            found |= {heading: shown_heading, text: shown}
    return found


def is_english(shown: str) -> bool:
    """Whether a text of a page is no Chinese: names of programs and variables alone need none."""
    bare = _QUOTED.sub("", shown)
    return english_in(shown) or (not _CHINESE.search(bare) and bool(re.search(r"[a-z]{2,} [a-z]{2,}", bare)))


_TEXTS: dict[str, Callable[[], Iterator[str]]] = {
    "doctor": lambda: iter((*doctor_templates(), *recorded_lines(), *lint_texts())),
    "errors": errors,
    "estimate": lambda: iter((*terms(), *estimated())),
    "top": keys,
}


@cache
def said_in(of: str) -> dict[str, str]:
    """Each English text that one face says, and what is shown for it."""
    if of == "help":
        return {text: say(text) or "" for text in help_texts()}
    if of == "explain":
        return pages()
    return {text: by_line(text, of) for text in _TEXTS[of]()}


def without_chinese(of: str) -> list[str]:
    is_left = is_english if of == "explain" else english_in
    return sorted(english for english, shown in said_in(of).items() if is_left(shown))
