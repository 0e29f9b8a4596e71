"""The tables of an estimate: each row is used, complete, and states its source."""

from __future__ import annotations

import re
import string
from pathlib import Path

from diag.preflight.estimate.model_shape import MODELS
from diag.preflight.estimate.states import TERMS
from diag.text.tables import load_table

PACKAGE = TERMS.parent
CODE = "\n".join(path.read_text() for path in sorted(PACKAGE.glob("*.py")))
TRAITS = {"known", "refused", "tied", "norms", "expert_bias", "shared_gate", "qkv_bias", "qk_norm"}


def test_each_term_has_a_name_a_formula_and_a_source_and_is_computed_somewhere() -> None:
    for key, row in load_table(TERMS).items():
        assert set(row) == {"name", "formula", "source"} and all(row.values()), key
        assert f'"{key}"' in CODE, key
        assert all(
            field is None or field.isidentifier()
            for _, field, _, _ in string.Formatter().parse(row["formula"])
        )


def test_each_term_of_the_code_is_in_the_table() -> None:
    assert set(re.findall(r'make_term\(\s*"(\w+)"', CODE)) <= set(load_table(TERMS))


def test_each_known_model_states_its_repository_and_a_known_type() -> None:
    table = load_table(MODELS)
    for name, row in table["models"].items():
        assert re.fullmatch(r"(Qwen|meta-llama)/[\w.-]+", row["source"]), name
        assert row["source"].lower().replace("meta-llama-", "llama-").partition("/")[2].startswith(name)
        assert table["model_types"][row["model_type"]]["known"]
    for name, traits in table["model_types"].items():
        assert set(traits) <= TRAITS, name


def test_tables_lie_beside_their_code() -> None:
    assert {path.name for path in PACKAGE.glob("*.yaml")} == {"models.yaml", "published.yaml", "terms.yaml"}
    assert all(path.is_relative_to(Path(__file__).parents[2] / "diag") for path in (TERMS, MODELS))
