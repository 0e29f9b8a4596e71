"""Flag > DIAG_* > diag.toml > default, and what is said of a value that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diag.errors import DiagError
from diag.settings import Settings, load


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DIAG_")]:
        monkeypatch.delenv(name)


def test_flag_wins_over_variable_over_file_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().port == 9095

    Path("diag.toml").write_text("port = 1001\nhost = '10.0.0.1'\n")
    assert load().port == 1001

    monkeypatch.setenv("DIAG_PORT", "1002")
    assert load().port == 1002

    assert load(port=1003).port == 1003
    assert load(port=None).port == 1002
    assert load(port=1003).host == "10.0.0.1"


def test_flag_that_says_no_is_a_flag() -> None:
    assert load(http=False).http is False


@pytest.mark.parametrize(
    ("variables", "toml", "flags", "words"),
    [
        ({"DIAG_PORT": "seven"}, "", {}, "port: "),
        ({"DIAG_PORT": "70000"}, "", {}, "port: "),
        ({}, "stack_seconds = 0.1", {}, "stack_seconds: "),
        ({}, "", {"dump_seconds": 0.5}, "dump_seconds: "),
        ({}, "http = 'perhaps'", {}, "http: "),
        ({}, "prot = 9095", {}, "prot: "),
        ({}, "[server]\nport = 9095", {}, "server: "),
        ({"DIAG_PORT": "x", "DIAG_HTTP": "perhaps"}, "", {}, "http: "),
        ({}, "port = ", {}, "diag.toml"),
        ({}, "\xff", {}, "diag.toml"),
    ],
)
def test_wrong_value_names_its_field_and_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], toml: str, flags: dict[str, Any], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    Path("diag.toml").write_bytes(toml.encode("latin-1"))

    with pytest.raises(DiagError) as error:
        load(**flags)

    assert words in str(error.value)
    assert error.value.exit_code == 2 and error.value.hint


def test_file_that_cannot_be_read_is_said_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("diag.toml").write_text("port = 1001")

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)

    with pytest.raises(DiagError, match=r"diag\.toml"):
        load()


def test_other_variables_of_diag_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIAG_FAULT", "DIAG_RUN_DIR", "DIAG_STACK_SIGNAL", "DIAG_UNKNOWN"):
        monkeypatch.setenv(name, "x")

    load()


def test_settings_do_not_change_and_every_one_says_what_it_is() -> None:
    settings = load()

    with pytest.raises(Exception, match="frozen"):
        settings.port = 1
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("word", ["", "  "])
def test_empty_token_is_none_and_leaves_the_file_to_be_read(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_TOKEN", word)
    assert load().token is None

    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("DIAG_TOKEN_FILE", str(tmp_path / "token"))
    assert load().token == "of-the-file"
