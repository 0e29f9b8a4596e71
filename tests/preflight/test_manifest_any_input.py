"""Manifests come from strangers: whatever stands in a field, `diag doctor --manifest` says lines and does not
fail."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.fix import fix_texts
from diag.preflight.manifest.reading import read_text
from tests.preflight.wrong_manifests import RIGHT

OVERLAYS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "overlays"
WHOLE = {
    "right": RIGHT,
    **{
        path.name: path.read_text()
        for path in sorted(OVERLAYS.glob("*/*.yaml"))
        if path.name != "kustomization.yaml"
    },
}
NONSENSE = st.sampled_from(
    [None, "", "x", "{{ .Values.x }}", "$(X)", "-1", "999999999999", "0", "1", "true", True, [], {}, [[]], [None], {"a": None},
     ["x"], [{"name": None}], [{"name": ["x"]}], {"x": ["y"]}, "\u0000", "é" * 300, "1e400", "0.0.0.0", "a.b.c.d.e", "bash -c '"]
)  # fmt: skip


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [item for key, each in inner for item in [(*path, key), *paths_of(each, (*path, key))]]


def with_nonsense(name: str, data: st.DataObject) -> str:
    documents = copy.deepcopy(list(yaml.safe_load_all(WHOLE[name])))
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(paths_of(documents)))
        place: Any = documents
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = copy.deepcopy(data.draw(NONSENSE))
    return str(yaml.safe_dump_all(documents, allow_unicode=True))


@pytest.mark.parametrize("name", sorted(WHOLE))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_field_may_hold_anything(name: str, data: st.DataObject) -> None:
    found, unread = read_text(with_nonsense(name, data), "any.yaml")

    for line in (*unread, *manifest_lines(found)):
        assert line.status in ("ok", "note", "problem", "not checked")
        assert "\x01" not in line.said + line.remedy


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_a_field_holds_what_is_mended_is_still_yaml(data: st.DataObject) -> None:
    text = with_nonsense("right", data)

    found = fix_texts({"any.yaml": text}, "rdma/hca")

    assert "\x01" not in found.text
    if not any(line.what == "any.yaml" for line in found.left):
        assert len([each for each in yaml.safe_load_all(found.text) if each]) >= 1
    assert fix_texts({"any.yaml": found.text}, "rdma/hca").text == found.text or found.left


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="abc:-{}[]&*!|>#%'\"\n \t\x00é", max_size=200))
def test_any_text_is_read_or_told(text: str) -> None:
    found, unread = read_text(text, "any.yaml")

    lines = [*unread, *manifest_lines(found)]

    assert lines


@pytest.mark.parametrize("label", ["\x00", ": {", "a, b: c", "'", "yes"])
def test_label_that_is_no_plain_word_of_yaml_is_in_the_service_as_it_is(label: str) -> None:
    documents = copy.deepcopy(list(yaml.safe_load_all(WHOLE["job.yaml"])))
    documents[0]["spec"]["template"]["metadata"]["labels"] = {"app": label}
    found, _ = read_text(str(yaml.safe_dump_all(documents, allow_unicode=True)), "job.yaml")

    services = [
        edit.value
        for line in manifest_lines(found)
        for edit in getattr(line, "edits", ())
        if isinstance(edit.value, dict) and edit.value.get("kind") == "Service"
    ]
    assert [one["spec"]["selector"] for one in services] == [{"app": label}]
