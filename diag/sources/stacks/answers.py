"""The answer that a process gives in the loop in which it takes requests, and the ways through a round of that loop without one,
by the text alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diag.model.observations import Answer, Block
from diag.sources.stacks.origin_kinds import dotted
from diag.sources.stacks.origin_scopes import Function, Text, callee_name
from diag.sources.stacks.statements import shown

_MOST_PAST = 3
_DEPTH = 2  # functions that the loop calls
_MOST_STEPS = 2000  # ours: statements that are looked at for one loop, some hundredths of a second
# Of files, sockets, pipes of multiprocessing, zmq and queues; and what programs call it.
_SENDS = re.compile(
    r"write|writelines|send|sendall|sendto|sendmsg|send_(?:bytes|string|json|pyobj|multipart|message|response)|put|put_nowait|reply|"
    r"respond|answer"
)
_TELLS = ("stderr", "log", "logger", "logging")  # what is written there is no answer
# Of a receive that comes to nothing: there was no request.
_NO_REQUEST = re.compile(
    r"Empty|Again|EOFError|timeout|TimeoutError|BlockingIOError|InterruptedError|Connection\w*Error|BrokenPipeError|KeyboardInterrupt|"
    r"SystemExit"
)
_ENDS = ("exit", "_exit", "abort")
_LEAVES = ast.Return | ast.Break | ast.Raise
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class _Past:
    """What decides that there is no answer: a condition that holds, or one that does not (`other`), or a handler."""

    node: ast.If | ast.ExceptHandler | ast.Match
    other: bool = False


@dataclass(frozen=True, slots=True)
class _Ways:
    """Without an answer: `through` some statements, and `back` to the loop's head, or out of the function that it calls; each by
    what decided on it last, None where nothing did. `answers`: those that were found on the other ways."""

    through: tuple[_Past | None, ...] = ()
    back: tuple[_Past | None, ...] = ()
    answers: tuple[ast.Call, ...] = ()

    def decided_by(self, past: _Past, *, through: bool = True) -> _Ways:
        """Where nothing within them did; `through` where that also decides of going on behind them."""
        return _Ways(
            tuple((one or past) if through else one for one in self.through),
            tuple(one or past for one in self.back),
            self.answers,
        )

    def beside(self, other: _Ways) -> _Ways:
        return _Ways(
            tuple(dict.fromkeys((*self.through, *other.through))),
            tuple(dict.fromkeys((*self.back, *other.back))),
            (*self.answers, *other.answers),
        )

    def then(self, after: _Ways) -> _Ways:
        """What `after` decides comes last."""
        through = [last or one for one in self.through for last in after.through]
        back = [last or one for one in self.through for last in after.back]
        return _Ways((), self.back, self.answers).beside(_Ways((*through,), (*back,), after.answers))


_STRAIGHT, _AWAY = _Ways((None,)), _Ways()


def answer_of(text: Text, line: int) -> Answer | None:
    """Of the loop around this line, where a process waits for its next request. None where there is no answer in it, each
    round has one, or it is too long or too deep to tell."""
    try:
        return _answer_of(text, line)
    except RecursionError:
        return None


def _answer_of(text: Text, line: int) -> Answer | None:
    for loop in text.loops_at(line):
        body = loop.body
        asks = next((at for at, one in enumerate(body) if one.lineno <= line <= (one.end_lineno or 0)), 0)
        round_ = _Round(text, line)
        ways = round_.block(body[asks:])
        if round_.steps > _MOST_STEPS:
            return None
        if ways.answers:
            past = dict.fromkeys(one for one in (*ways.back, *ways.through) if one is not None)
            first = ways.answers[0]
            blocks = tuple(_block(one, text) for one in past)
            said = shown(text.segment(first))
            return Answer(text.path, first.lineno, said, blocks) if 0 < len(blocks) <= _MOST_PAST else None
    return None


def _block(one: _Past, text: Text) -> Block:
    node = one.node
    if isinstance(node, ast.ExceptHandler):
        return Block(node.lineno, node.body[-1].end_lineno or 0, "except", shown(text.head_of(node)))
    last = node.end_lineno or node.lineno
    if isinstance(node, ast.Match):
        return Block(node.lineno, last, "match", shown(f"match {text.segment(node.subject)}:"))
    return Block(node.lineno, last, "else" if one.other else "if", shown(f"if {text.segment(node.test)}:"))


class _Round:
    """Of a loop that asks at this line."""

    def __init__(self, text: Text, line: int) -> None:
        self._text, self._line = text, line
        self.steps = 0

    def block(self, body: Sequence[ast.stmt], depth: int = 0) -> _Ways:
        ways = _STRAIGHT
        for one in body:
            self.steps += 1
            if not ways.through or self.steps > _MOST_STEPS:
                break
            ways = ways.then(self._statement(one, depth))
        return ways

    def _statement(self, one: ast.stmt, depth: int) -> _Ways:
        if isinstance(one, ast.If):
            sides = [(one.body, _Past(one)), (one.orelse, _Past(one, other=True))]
            return self._branches(sides, depth)
        if isinstance(one, ast.Match):
            return self._branches([(case.body, _Past(one)) for case in one.cases], depth)
        if isinstance(one, ast.Try):
            return self._tried(one, depth)
        if isinstance(one, ast.With | ast.AsyncWith):
            return self.block(one.body, depth)
        if isinstance(one, ast.For | ast.AsyncFor | ast.While):
            answers = self.block(one.body, depth).answers
            return _Ways(answers=answers) if answers else _STRAIGHT
        if isinstance(one, ast.Continue):
            return _Ways(back=(None,)) if not depth else _AWAY
        if isinstance(one, ast.Return) and depth:
            ways = self._plain(one, depth)
            return _Ways(back=ways.through, answers=ways.answers)
        if isinstance(one, _LEAVES):
            return _AWAY
        return _STRAIGHT if isinstance(one, _DEFINES) else self._plain(one, depth)

    def _branches(self, sides: Sequence[tuple[Sequence[ast.stmt], _Past]], depth: int) -> _Ways:
        """Who is through without an answer is so by this condition where another side has one."""
        found = [(self.block(body, depth), past) for body, past in sides]
        ways = _Ways()
        for at, (one, past) in enumerate(found):
            others = any(other.answers for number, (other, _) in enumerate(found) if number != at)
            ways = ways.beside(one.decided_by(past, through=others))
        return ways

    def _tried(self, one: ast.Try, depth: int) -> _Ways:
        ways = self.block([*one.body, *one.orelse], depth)
        asks = any(each.lineno <= self._line <= (each.end_lineno or 0) for each in one.body) and not depth
        for handler in one.handlers:
            if asks and (len(one.body) == 1 or _is_of_no_request(handler)):
                continue
            ways = ways.beside(self.block(handler.body, depth).decided_by(_Past(handler)))
        return ways.then(self.block(one.finalbody, depth))

    def _plain(self, one: ast.stmt, depth: int) -> _Ways:
        calls = [part for part in ast.walk(one) if isinstance(part, ast.Call)]
        if sends := [call for call in calls if _sends(call)]:
            return _Ways(answers=(sends[0],))
        if any(callee_name(call) in _ENDS for call in calls):
            return _AWAY
        for call in calls if depth < _DEPTH else ():
            for function in self._functions(call):
                ways = self.block(function.node.body, depth + 1)
                if ways.answers:
                    return _Ways((*ways.through, *ways.back), (), ways.answers)
        return _STRAIGHT

    def _functions(self, call: ast.Call) -> Iterator[Function]:
        """Of this file, where only one is called so."""
        name, owner = callee_name(call), dotted(call.func).rpartition(".")[0]
        found = (self._text.methods if owner else self._text.functions).get(name, [])
        if len(found) == 1 and owner in ("", "self", "cls"):
            yield found[0]


def _is_of_no_request(handler: ast.ExceptHandler) -> bool:
    names = re.findall(r"[\w.]+", ast.unparse(handler.type)) if handler.type is not None else []
    return bool(names) and all(map(_NO_REQUEST.search, names))


def _sends(call: ast.Call) -> bool:
    called = dotted(call.func)
    owner, dot, name = called.rpartition(".")
    if called == "print":
        given = next((one.value for one in call.keywords if one.arg == "file"), None)
        return given is None or not dotted(given).endswith("stderr")
    return bool(dot) and _SENDS.fullmatch(name) is not None and owner.rpartition(".")[2] not in _TELLS
