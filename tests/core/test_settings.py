"""Flag > DIAG_* > diag.toml > default, and what is said of a value that cannot be used."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from diag.launch.settings_file import OF_EVIDENCE
from diag.settings import Settings, load
from diag.text.errors import DiagError
from tests.otheruser import NOBODY, as_root


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

    def refuse(path: str, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("diag.launch.settings_file.os.open", refuse)

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
def test_empty_token_is_none_and_leaves_the_file_to_be_read(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_TOKEN", word)
    assert load().token is None

    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("DIAG_TOKEN_FILE", str(tmp_path / "token"))
    assert load().token == "of-the-file"


# --- whose diag.toml
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_file_of_ours_is_obeyed_and_named(mode: int, tmp_path: Path) -> None:
    Path("diag.toml").write_text("port = 1001")
    Path("diag.toml").chmod(mode)

    assert (load().port, load().file, load(port=1).file) == (
        1001,
        tmp_path / "diag.toml",
        tmp_path / "diag.toml",
    )


def test_without_one_no_file_is_named() -> None:
    assert load().file is None
    Path("diag.toml").mkdir()
    assert load().file is None


@pytest.mark.parametrize(
    "mode, why", [(0o666, "all users can write"), (0o602, "all users can"), (0o664, "its group 4711 can")]
)
def test_file_that_others_can_write_is_an_error_that_says_so(mode: int, why: str) -> None:
    Path("diag.toml").write_text("port = 1001")
    if os.geteuid() == 0:
        os.chown("diag.toml", 0, 4711)
    elif mode & 0o020:
        pytest.skip("only root can give a file to a group that it is not in")
    Path("diag.toml").chmod(mode)

    with pytest.raises(DiagError, match=why) as error:
        load()

    assert (
        str(Path.cwd() / "diag.toml") in str(error.value)
        and error.value.exit_code == 2
        and "go-w" in error.value.hint
    )


def test_users_own_group_may_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """umask 002, as many machines set it where each user has a group of that name."""
    user = pwd.getpwuid(os.geteuid())
    group = grp.struct_group((user.pw_name, "x", user.pw_gid, []))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    Path("diag.toml").write_text("port = 1001")
    os.chown("diag.toml", -1, user.pw_gid)
    Path("diag.toml").chmod(0o664)
    assert load().port == 1001

    group = grp.struct_group((user.pw_name, "x", user.pw_gid, ["somebody"]))
    with pytest.raises(DiagError, match="can write it"):
        load()


@as_root
def test_file_of_another_user_is_an_error_and_for_a_job_a_word() -> None:
    Path("diag.toml").write_text("port = 1001\nhost = '0.0.0.0'")
    os.chown("diag.toml", NOBODY, NOBODY)
    said: list[str] = []

    with pytest.raises(DiagError, match=f"it belongs to user {NOBODY}"):
        load()
    settings = load(refused=said.append)
    over_evidence = load(take=OF_EVIDENCE)

    assert (settings.port, settings.host, settings.file) == (9095, "", None)
    assert len(said) == 1 and "CMD runs without its settings" in said[0]
    assert over_evidence.file is None


@as_root
def test_unreadable_file_of_another_user_is_refused_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("diag.toml").write_text("port = 1001")
    os.chown("diag.toml", NOBODY, NOBODY)

    def refuse(path: str, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("diag.launch.settings_file.os.open", refuse)

    assert load(refused=lambda line: None).port == 9095


@as_root
def test_link_of_another_user_is_refused_and_one_of_ours_followed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "real.toml").write_text("port = 1001")
    (tmp_path / "shared" / "diag.toml").symlink_to("real.toml")
    Path("diag.toml").symlink_to("shared/diag.toml")
    assert load().port == 1001

    os.chown("shared/diag.toml", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(DiagError, match="it is a link owned by user"):
        load()
    Path("diag.toml").unlink()
    Path("diag.toml").symlink_to("nothing")
    assert load().file is None


def test_command_over_evidence_takes_language_and_rules_of_it_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("diag.toml").write_text(
        'lang = "zh"\nrules = "."\nhost = "0.0.0.0"\ntoken_file = "/etc/hostname"\nsd_file = "x"\n'
    )

    settings = load(take=OF_EVIDENCE, port=7)
    load(take=OF_EVIDENCE)

    assert (settings.lang, settings.rules, settings.host, settings.token, settings.sd_file) == (
        "zh",
        Path(),
        "",
        None,
        None,
    )
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "host, sd_file, token_file of" in said
    assert load(take=OF_EVIDENCE, host="10.0.0.1").host == "10.0.0.1"


def test_what_evidence_may_decide_opens_nothing() -> None:
    """A new setting is none of it until somebody has thought of a stranger's folder."""
    assert {"lang", "rules"} == OF_EVIDENCE and set(Settings.model_fields) > OF_EVIDENCE


def test_unknown_key_is_an_error_there_too() -> None:
    Path("diag.toml").write_text("prot = 1")

    with pytest.raises(DiagError, match="prot"):
        load(take=OF_EVIDENCE)
