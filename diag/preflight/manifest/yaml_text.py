"""One change in the text of a YAML file, with its comments, order and quotes kept.

Each change is made twice, in the text and in the data that it stands for, and compared. Where the text says
something else afterwards (an alias would change in two places, a style that is not known here), the document is
written anew from its data, without its comments. Judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

Path = Sequence[str | int]
# At the beginning of a line it ends whatever stands before it.
_MARKER = re.compile(r"^---(?=\s|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Changed:
    text: str
    keeps_comments: bool = True


def put(text: str, index: int, path: Path, value: Any) -> Changed:
    """A value at a path of the document with this index; mappings on the way are made.

    >>> put("kind: Job\\nspec: {a: 1}  # small\\n", 0, ("spec", "template", "b"), True).text
    'kind: Job\\nspec: {a: 1, template: {b: true}}  # small\\n'
    >>> put("spec:\\n  a: 1  # one\\nlast: 2\\n", 0, ("spec", "b"), {"c": [1]}).text
    'spec:\\n  a: 1  # one\\n  b:\\n    c:\\n    - 1\\nlast: 2\\n'
    """
    data = _data(text, index)
    _put(data, path, value)
    return _checked(text, index, data, lambda node: _put_text(text, node, path, value))


def add(text: str, index: int, path: Path, item: Any) -> Changed:
    """An item at the end of the list at a path, which is made where it is not there.

    >>> add("add: [A]\\n", 0, ("add",), "B").text, add("env:\\n- a: 1\\n", 0, ("env",), {"b": "2"}).text
    ('add: [A, B]\\n', "env:\\n- a: 1\\n- b: '2'\\n")
    """
    data = _data(text, index)
    try:
        held = _at(data, path)
    except (KeyError, IndexError, TypeError):
        held = None
    if not isinstance(held, list) or not held:
        return put(text, index, path, [item])
    held.append(item)
    return _checked(text, index, data, lambda node: _add_text(text, _node(node, path), item))


def drop(text: str, index: int, path: Path) -> Changed:
    """What is at a path is left out, and what holds nothing else with it.

    >>> drop("a:\\n  env:\\n  - name: X\\n    value: 1\\n  b: 2\\n", 0, ("a", "env", 0)).text
    'a:\\n  b: 2\\n'
    """
    data = _data(text, index)
    while len(path) > 1 and len(_at(data, path[:-1])) == 1:
        path = path[:-1]
    del _at(data, path[:-1])[path[-1]]
    return _checked(text, index, data, lambda node: _drop_text(text, _node(node, path[:-1]), path[-1]))


def swap(text: str, index: int, path: Path, old: str, new: str) -> Changed:
    """`new` for each `old` within the text at a path.

    >>> swap("args:\\n- |\\n  export A=x\\n", 0, ("args", 0), "A=x", "A=y").text
    'args:\\n- |\\n  export A=y\\n'
    """
    data = _data(text, index)
    holder = _at(data, path[:-1])
    holder[path[-1]] = str(holder[path[-1]]).replace(old, new)

    def swapped(node: yaml.Node) -> str:
        found = _node(node, path)
        begin, end = found.start_mark.index, found.end_mark.index
        return text[:begin] + text[begin:end].replace(old, new) + text[end:]

    return _checked(text, index, data, swapped)


def span(text: str, index: int) -> tuple[int, int]:
    """Where the document with this index begins and ends; all of the text where that is not plain.

    >>> text = "# mine\\n---\\na: 1\\n---\\nb: 2\\n"
    >>> text[slice(*span(text, 1))]
    '---\\nb: 2\\n'
    """
    begins = [0, *(match.start() for match in _MARKER.finditer(text) if match.start())]
    spans = list(zip(begins, [*begins[1:], len(text)], strict=True))
    first = text[: spans[0][1]]
    if not first.startswith("---") and not re.sub(r"(?m)^\s*(#.*)?$", "", first).strip():
        spans = spans[1:]  # comments before the first document
    plain = not re.search(r"(?m)^(%|\.\.\.)", text) and index < len(spans)
    return spans[index] if plain else (0, len(text))


def with_document(text: str, value: Any) -> Changed:
    """A further document at the end.

    >>> with_document("kind: Job", {"kind": "Service"}).text
    'kind: Job\\n---\\nkind: Service\\n'
    """
    return Changed(f"{text.rstrip()}\n---\n{_dump(value)}")


# --- the data


def _data(text: str, index: int) -> Any:
    return _plain(list(yaml.safe_load_all(text))[index])


def _plain(value: Any) -> Any:
    """A copy without aliases: what is written once and meant twice."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data


def _put(data: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        if isinstance(step, str) and not data.get(step):
            data[step] = {}
        data = data[step]
    data[path[-1]] = value


def _checked(text: str, index: int, wanted: Any, change: Any) -> Changed:
    nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    before = list(yaml.safe_load_all(text))
    expected = [*before[:index], wanted, *before[index + 1 :]]
    try:
        changed = change(nodes[index])
        if list(yaml.safe_load_all(changed)) == expected:
            return Changed(changed)
    except (yaml.YAMLError, LookupError, ValueError):
        pass
    return Changed("---\n".join(_dump(value) for value in expected if value is not None), False)


def _dump(value: Any, *, flow: bool = False) -> str:
    text = yaml.safe_dump(value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=10_000)
    return str(text).removesuffix("...\n")


# --- the text


def _node(node: Any, path: Path) -> Any:
    for step in path:
        if isinstance(node, yaml.MappingNode):
            node = _entry(node, step)[1]
        else:
            node = node.value[step]
    return node


def _entry(node: yaml.MappingNode, name: object) -> tuple[yaml.Node, yaml.Node]:
    return next((key, value) for key, value in reversed(node.value) if key.value == name)


def _has(node: yaml.Node, name: object) -> bool:
    return isinstance(node, yaml.MappingNode) and any(key.value == name for key, _ in node.value)


def _end(node: yaml.Node) -> int:
    """Of what is written: the marks of block collections lie beyond the comments that follow them."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _line_end(text: str, at: int) -> int:
    """Where the next line begins. A block of text ends there already."""
    if at and text[at - 1] == "\n":
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _line_begin(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _put_text(text: str, node: yaml.Node, path: Path, value: Any) -> str:
    steps = list(path)
    while len(steps) > 1 and (isinstance(node, yaml.SequenceNode) or _has(node, steps[0])):
        inner = _node(node, steps[:1])
        if isinstance(inner, yaml.ScalarNode) or (isinstance(inner, yaml.MappingNode) and not inner.value):
            break  # nothing, or {}
        node = inner
        steps = steps[1:]
    for step in reversed(steps[1:]):
        value = {step: value}
    assert isinstance(node, yaml.MappingNode)
    if _has(node, steps[0]):
        return _replaced(text, node, steps[0], value)
    return _inserted(text, node, steps[0], value)


def _value_text(value: Any, column: int, *, flow: bool) -> str:
    """As it stands behind "name:", the name being at this column."""
    if flow or not isinstance(value, (dict, list)) or not value:
        return " " + _dump(value, flow=flow or isinstance(value, (dict, list))).strip()
    shift = " " * (column + (2 if isinstance(value, dict) else 0))
    return "\n" + "\n".join(f"{shift}{line}" for line in _dump(value).splitlines())


def _replaced(text: str, node: yaml.MappingNode, name: object, value: Any) -> str:
    key, old = _entry(node, name)
    colon = text.index(":", key.end_mark.index)
    new = _value_text(value, key.start_mark.column, flow=bool(node.flow_style))
    end = max(_end(old), colon + 1)
    tail = "\n" if end and text[end - 1] == "\n" else ""
    return text[: colon + 1] + new + tail + text[end:]


def _inserted(text: str, node: yaml.MappingNode, name: object, value: Any) -> str:
    if node.flow_style:
        at = node.end_mark.index - 1
        shown = f"{name}:{_value_text(value, 0, flow=True)}"
        return text[:at].rstrip() + (", " if node.value else "") + shown + text[at:]
    column = node.value[0][0].start_mark.column
    at = _line_end(text, _end(node))
    before = text[:at] if text[:at].endswith("\n") else text[:at] + "\n"
    return f"{before}{' ' * column}{name}:{_value_text(value, column, flow=False)}\n{text[at:]}"


def _add_text(text: str, node: yaml.CollectionNode, item: Any) -> str:
    if node.flow_style:
        at = node.end_mark.index - 1
        return text[:at].rstrip() + ", " + _dump(item, flow=True).strip() + text[at:]
    column = node.start_mark.column
    at = _line_end(text, _end(node))
    before = text[:at] if text[:at].endswith("\n") else text[:at] + "\n"
    lines = _dump([item]).splitlines()
    return before + "".join(f"{' ' * column}{line}\n" for line in lines) + text[at:]


def _drop_text(text: str, node: yaml.CollectionNode, step: str | int) -> str:
    if isinstance(node, yaml.MappingNode):
        spans = [(key.start_mark.index, _end(value)) for key, value in node.value]
        at = next(place for place, (key, _) in enumerate(node.value) if key.value == step)
    else:
        spans = [(each.start_mark.index, _end(each)) for each in node.value]
        at = int(step)
    begin, end = spans[at]
    if node.flow_style:
        if at + 1 < len(spans):
            return text[:begin] + text[spans[at + 1][0] :]
        return text[: spans[at - 1][1]] + text[end:]
    line = _line_begin(text, begin)
    lead = text[line:begin]
    if lead.strip() and isinstance(node, yaml.MappingNode):  # "- name: x": the dash stays
        return text[:begin] + text[spans[at + 1][0] :]
    if lead.strip() not in ("", "-"):
        raise ValueError("a list in a list")
    return text[:line] + text[_line_end(text, end) :]
