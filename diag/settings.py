"""All settings in one frozen object: flag > DIAG_* variable > diag.toml > default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from diag.launch.settings_file import NAME, OF_EVIDENCE, RefusedFile, SettingsFile, read_settings_file
from diag.launch.tokens import read_token
from diag.text.errors import DiagError

# Variables of diag that are no settings: it sets them for CMD, or its fire drills read them.
_OTHER_VARIABLES = frozenset(
    {
        "DIAG_ATTEMPT",
        "DIAG_FAULT",
        "DIAG_FAULT_AGAIN",
        "DIAG_FAULT_DIR",
        "DIAG_FAULT_RELEASE",
        "DIAG_JOB_DEVICE",
        "DIAG_LINE_BUFFERED",
        "DIAG_PTRACER_PID",
        "DIAG_RESUME_FLAGS",
        "DIAG_RUN_DIR",
        "DIAG_STACK_SIGNAL",
    }
)


# Tables, their keys, and the settings that they are.
_OF_TABLES = {
    "notify": {"urls": "notify", "on_finding": "on_finding", "per_hour": "notify_per_hour"},
    "feed": {"to": "feed", "per_hour": "feed_per_hour"},
}

_of_file: ContextVar[dict[str, Any]] = ContextVar("settings of the file", default={})  # noqa: B039 - never changed
_said: set[str] = set()

_AS_TYPED = 0.88  # of likeness: DIAG_ alone makes any two names alike


class Settings(BaseSettings):
    """What can be set. Every field is also DIAG_<NAME> and a key of diag.toml in the working directory."""

    model_config = SettingsConfigDict(env_prefix="DIAG_", frozen=True, extra="forbid")

    run_root: Path | None = Field(
        None, description="where run directories are made; default: a cache directory of the user"
    )
    host: str = Field(
        "",
        description="address the HTTP server listens on; empty: 127.0.0.1, and all addresses once the "
        "hubs of several nodes join",
    )
    port: int = Field(
        9095, ge=0, le=65535, description="port of the HTTP server; 0, or when taken: any free one"
    )
    http: bool = Field(True, description="serve HTTP at all")
    job_id: str = Field(
        "",
        description="job name in metric labels, the same on all nodes; default: Slurm's job id, "
        "torchrun's --rdzv-id, else the run's id",
    )
    sd_file: Path | None = Field(
        None,
        description="file_sd file that announces this hub to Prometheus; for a directory: one file per hub",
    )
    token: str | None = Field(
        None, description="bearer token; generated when the server binds to a non-loopback address"
    )
    token_file: Path | None = Field(None, description="file that holds the token, such as a mounted secret")
    nodes: str = Field(
        "auto",
        description="nodes whose hubs join: auto (from the launcher's environment), off, host[:port],... "
        "in node-rank order, or @FILE with one host per line",
    )
    tls_cert: Path | None = Field(None, description="certificate (PEM) for HTTPS; with tls_key")
    tls_key: Path | None = Field(None, description="private key (PEM) of tls_cert")
    tls_ca: Path | None = Field(None, description="CA certificates for verifying other nodes' hubs")
    inject: bool = Field(
        True, description="put the in-rank hook on PYTHONPATH (ptrace permission, stacks by signal)"
    )
    flight_recorder: bool = Field(
        True, description="open torch's worker server in each rank so that its Flight Recorder can be read"
    )
    nccl_debug: bool = Field(
        True, description="set NCCL_DEBUG=INFO and NCCL_DEBUG_FILE unless the user set either"
    )
    ras: Literal["auto", "force", "off"] = Field(
        "auto", description="whether NCCL RAS is asked under suspicion"
    )
    expected_net: str = Field(
        "",
        description="networks NCCL should use between nodes: names with * and ? and commas, "
        "as NCCL writes them (IB, IBext*, AWS Libfabric, Socket); empty: any but sockets",
    )
    rules: Path | None = Field(
        None, description="a folder of rules for lines of the log, beside those that come with diag"
    )
    stack_seconds: float = Field(5.0, ge=0.5, description="time between stack samples of a healthy rank")
    close_stack_seconds: float = Field(
        2.0, ge=0.5, description="time between stack samples once progress is overdue"
    )
    proc_seconds: float = Field(2.0, ge=0.2, description="time between readings of /proc of a rank")
    node_seconds: float = Field(
        5.0, ge=0.5, description="time between readings of GPU, memory cgroup and /dev/shm"
    )
    journal_max_bytes: int = Field(256 << 20, ge=1 << 20, description="maximum size of the journal on disk")
    output_max_bytes: int = Field(
        1 << 30, ge=1 << 20, description="maximum size of the job's kept output on disk"
    )
    lone_process_seconds: float = Field(
        15.0, ge=0.0, description="wait this long for ranks, then watch CMD as rank 0"
    )
    read_program: bool = Field(
        True, description="when the job is suspected, read the lines of its own files at which its ranks are"
    )
    variables: bool = Field(
        True,
        description="when the job is suspected, read the variables of its own functions; secrets are hidden",
    )
    auto_evidence: bool = Field(
        True, description="write a bundle by itself as soon as a critical finding is told"
    )
    evidence_native: bool = Field(
        False,
        description="read C frames of one culprit and one victim of a hang for it too, which stops these two for a moment",
    )
    evidence_bundles: int = Field(3, ge=1, description="bundles written by themselves in one run, at most")
    evidence_max_bytes: int = Field(
        64 << 20, ge=20 << 20, description="maximum size of each of these bundles"
    )
    notify: str = Field(
        "",
        repr=False,
        description="addresses to which messages on critical findings and the job's end are sent, or @FILE; each is a secret",
    )
    notify_per_hour: int = Field(
        10, ge=1, description="messages in an hour at the most; what comes meanwhile is sent as one"
    )
    on_finding: str = Field(
        "",
        repr=False,
        description="a command that is started for each finding, with the finding as JSON on its stdin",
    )
    feed: str = Field(
        "",
        description="controllers of the cluster that are told of findings: kubernetes, trainjob, nvsentinel, nvrx, slurm, "
        "each NAME or NAME:OPTION=VALUE,...",
    )
    feed_per_hour: int = Field(
        60,
        ge=1,
        description="times in an hour that these are told, at the most; what comes meanwhile is told at once",
    )
    lang: Literal["", "en", "zh"] = Field(
        "",
        description="language of reports and manual pages: en or zh; empty: from the locale",
    )

    _file: Path | None = PrivateAttr(None)
    _of_flags: frozenset[str] = PrivateAttr(frozenset())

    @field_validator("notify", "feed", mode="before")
    @classmethod
    def _in_one(cls, value: Any) -> Any:
        """A list of addresses, as diag.toml may have it: none has a blank in it."""
        return " ".join(map(str, value)) if isinstance(value, list) else value

    @property
    def file(self) -> Path | None:
        """The diag.toml that some of them come from."""
        return self._file

    @property
    def of_flags(self) -> frozenset[str]:
        """Those that the command line gave."""
        return self._of_flags

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=_of_file.get())


def load(
    *, take: Collection[str] | None = None, refused: Callable[[str], None] | None = None, **flags: Any
) -> Settings:
    """Settings with the flags that were given (None = not given). Raises DiagError naming what is wrong and
    where.

    `take`: of diag.toml these alone (flags and variables all the same). A diag.toml that another user can
    write is an error where going on without it would do something else than was asked; with `take`, or with
    `refused` (a job must start), a line.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        file = _read_file(take, refused)
        token = _of_file.set(_flat(file.values) if file is not None else {})
        try:
            settings = Settings(**given)
        finally:
            _of_file.reset(token)
    except DiagError:
        raise
    except ValidationError as error:
        lines = [_complaint(item) for item in error.errors()]
        raise DiagError(
            "settings cannot be used: " + "; ".join(lines),
            hint="settings come from flags, DIAG_* variables and diag.toml, in this order; docs/reference/settings.md lists them",
            exit_code=2,
        ) from None
    except (
        ValueError,
        OSError,
        RecursionError,
    ) as error:  # a diag.toml that is not TOML, or not ours to read
        raise DiagError(f"{NAME} cannot be read: {error}", hint="fix or remove it", exit_code=2) from None
    settings._of_flags = frozenset(given)
    if file is not None:
        settings._file = file.path
    if settings.token is not None and settings.token.strip():
        return settings
    # `DIAG_TOKEN=` as an optional secret leaves it: no token was given, and none that is empty may ever
    # count.
    word = read_token(str(settings.token_file)) if settings.token_file is not None else None
    return settings.model_copy(update={"token": word})


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """The tables [notify] and [feed] of diag.toml as the settings that they have.

    >>> _flat({"port": 1, "notify": {"urls": ["slack://a"], "on_finding": "x", "per_hour": 3}})
    {'port': 1, 'notify': ['slack://a'], 'on_finding': 'x', 'notify_per_hour': 3}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name in _OF_TABLES and isinstance(value, dict):
            flat |= {_OF_TABLES[name].get(key, f"{name}.{key}"): one for key, one in value.items()}
        else:
            flat[name] = value
    return flat


def _read_file(take: Collection[str] | None, refused: Callable[[str], None] | None) -> SettingsFile | None:
    try:
        file = read_settings_file()
    except RefusedFile as error:
        if refused is not None:
            refused(f"diag: {error}; CMD runs without its settings ({error.hint})")
        elif take is not None:
            say_once(f"diag: {error} ({error.hint})")
        else:
            raise
        return None
    if file is None or take is None:
        return file
    file = file.only(take, Settings.model_fields)
    if file.left and take == OF_EVIDENCE:
        say_once(
            f"diag: {', '.join(file.left)} of {file.path} ignored: this command reads only {', '.join(sorted(OF_EVIDENCE))} "
            "from a file, all others from flags and DIAG_* variables"
        )
    return file


def say_once(line: str) -> None:
    """On stderr: some commands load settings more than once."""
    if line not in _said:
        _said.add(line)
        print(line, file=sys.stderr)


def _complaint(item: Mapping[str, Any]) -> str:
    """One complaint of pydantic, beginning with the setting's name."""
    name = ".".join(map(str, item["loc"]))
    if item["type"] != "extra_forbidden":
        return f"{name}: {item['msg']}"
    from diag.text.suggest import did_you_mean

    meant = did_you_mean(name.lower().replace("-", "_").removeprefix("diag_"), Settings.model_fields)
    return f"{name}: unknown setting" + (f", {meant}" if meant else "")


def unread_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for each DIAG_* variable that nothing reads, but that is a setting but for a letter or two.
    Others may be anybody's.

    >>> unread_variables({"DIAG_PROT": "9100", "DIAG_PORT": "9100", "DIAG_OF_OUR_TEAM": "1"})
    ['DIAG_PROT is not a setting of diag: did you mean DIAG_PORT?']
    """
    known = {f"DIAG_{name.upper()}" for name in Settings.model_fields}
    lower = {name.lower() for name in known}  # pydantic reads diag_port as well
    wrong = [
        name
        for name in environment
        if name.upper().startswith("DIAG_") and name.lower() not in lower and name not in _OTHER_VARIABLES
    ]
    if not wrong:
        return []
    from diag.text.suggest import near

    lines = []
    for name in sorted(wrong):
        found = near(name.upper(), known, 1, _AS_TYPED)
        lines += [f"{name} is not a setting of diag: did you mean {found[0]}?"] if found else []
    return lines
