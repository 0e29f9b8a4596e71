"""What commands say beside findings, for the test that all of it has Chinese: doctor's lines and what is recorded of
them, `--help`, errors."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from diag.cli.chinese_help import say
from diag.cli.main import make_parser
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


_TEXTS: dict[str, Callable[[], Iterator[str]]] = {
    "doctor": lambda: iter((*doctor_templates(), *recorded_lines())),
    "errors": errors,
    "estimate": lambda: iter((*terms(), *estimated())),
    "top": keys,
}


@cache
def said_in(of: str) -> dict[str, str]:
    """Each English text that one face says, and what is shown for it."""
    if of == "help":
        return {text: say(text) or "" for text in help_texts()}
    return {text: by_line(text, of) for text in _TEXTS[of]()}


def without_chinese(of: str) -> list[str]:
    return sorted(english for english, shown in said_in(of).items() if english_in(shown))
