"""`docker run`, podman's and nerdctl's: what their own flags give the container that CMD will run in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from diag.launch.launchers.command.options import CommandError, read_options

ENGINES = frozenset({"docker", "podman", "nerdctl", "docker-compose"})
_AS_WRITTEN = ("shm_size", "ipc", "network", "memory", "pids_limit", "workdir", "runtime")
_LONG = 40
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Container:
    """Flags as they are written, "" where they are not given: what the engine does then is its default.

    `words` is the line itself, from the engine's name on, and `inner` what is left of it behind the image.
    `ulimits` are those of --ulimit by name, `mounts` (path here, path inside), `ports` those of --publish,
    `variables` what --env and --env-file give it, `not_read` files of variables that could not be read.
    `sources` are what --volume and --mount of kind bind name on this machine, each with the option's text and the
    path inside. With `by_compose` the line is what a service of a compose file amounts to.
    """

    engine: str
    image: str = ""
    shm_size: str = ""
    ipc: str = ""
    network: str = ""
    memory: str = ""
    gpus: str = ""
    pids_limit: str = ""
    workdir: str = ""
    ulimits: Mapping[str, str] | None = None
    capabilities: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    is_privileged: bool = False
    not_read: tuple[str, ...] = ()
    runtime: str = ""
    words: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    by_compose: bool = False
    sources: tuple[tuple[str, str, str], ...] = ()

    @property
    def shm_bytes(self) -> int | None:
        """Of /dev/shm; None where it is the host's or another container's, or not to be read."""
        if self.ipc not in ("", "private", "shareable"):
            return None
        if any(inside.rstrip("/") == "/dev/shm" for _, inside in self.mounts):
            return None
        return size_of(self.shm_size or "64m")  # docker's and podman's own default

    @property
    def short_image(self) -> str:
        """Its name without the registry, and of a long tag the beginning.

        >>> Container("docker", "hub.example/a/swift:3.7.1").short_image
        'swift:3.7.1'
        """
        name = self.image.rpartition("/")[2]
        return name if len(name) <= _LONG else f"{name[:_LONG]}..."

    def holder_of(self, path: str) -> str:
        """What has a file of the container that does not lie on this machine: the image, or a mount.

        >>> Container("docker", "img", mounts=(("", "/app"),), sources=(("code", "-v code:/app", "/app"),)).holder_of("/app/x.sh")
        'what `-v code:/app` mounts'
        """
        inside = PurePosixPath(self.workdir or "/", path)
        option = next((option for _, option, target in self.sources if inside.is_relative_to(target)), "")
        return f"what `{option}` mounts" if option else f"the image {self.short_image}"

    def path_here(self, path: str) -> str | None:
        """Where a file of the container lies on this machine; None where it is the image's.

        >>> Container("docker", mounts=(("/srv/jobs", "/app"),)).path_here("/app/train.sh")
        '/srv/jobs/train.sh'
        """
        inside = PurePosixPath(self.workdir or "/", path)
        for source, target in sorted(self.mounts, key=lambda mount: -len(mount[1])):
            if source and inside.is_relative_to(target):
                return str(PurePosixPath(source) / inside.relative_to(target))
        return None


def size_of(text: str) -> int | None:
    """Bytes of a size as docker writes it; None for what is none.

    >>> size_of("50G"), size_of("64m"), size_of("1.5gb"), size_of("-1")
    (53687091200, 67108864, 1610612736, None)
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s?([bkmgt]?)(?:i?b)?", text.strip().lower())
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def run_in(
    words: list[str],
    environment: Mapping[str, str],
    read_text: Callable[[str], str | None],
    *,
    by_compose: bool = False,
) -> tuple[Container, dict[str, str], list[str]]:
    """Of `docker run ...` (with or without `container`): the container, the variables that its flags give it,
    and the command inside.

    >>> c, env, inner = run_in("docker run --rm -it --shm-size=50G -eA=1 -e B img bash x.sh".split(), {"B": "2"}, lambda p: None)
    >>> c.image, c.shm_size, env, inner
    ('img', '50G', {'A': '1', 'B': '2'}, ['bash', 'x.sh'])
    """
    given, inner = read_options(words[words.index("run") + 1 :], "docker")
    if not inner:
        raise CommandError(f"`{words[0]} run` names no image", hint="pass the whole command")
    image, *inner = inner
    entry = _last(given, "--entrypoint")
    variables, not_read = _variables(given, environment, read_text)
    container = Container(
        engine=words[0].rpartition("/")[2],
        image=image,
        gpus=_last(given, "--gpus").strip("\"'"),
        **{name: _last(given, f"--{name}") for name in _AS_WRITTEN},
        ulimits=dict(text.partition("=")[::2] for text in given.get("--ulimit", ())),
        capabilities=tuple(text.upper().removeprefix("CAP_") for text in given.get("--cap_add", ())),
        devices=tuple(given.get("--device", ())),
        ports=tuple(given.get("--publish", ())),
        mounts=(*_volumes(given.get("--volume", ())), *_mounts(given.get("--mount", ()))),
        is_privileged=given.get("--privileged", ["false"])[-1] in ("", "true"),
        not_read=not_read,
        by_compose=by_compose,
        words=tuple(words),
        inner=tuple(inner),
        variables=variables,
        sources=(*_sources("-v", given.get("--volume", ())), *_sources("--mount", given.get("--mount", ()))),
    )
    return container, variables, [entry, *inner] if entry else inner


def _last(given: Mapping[str, list[str]], name: str) -> str:
    return given.get(name, [""])[-1]


def _variables(
    given: Mapping[str, list[str]], environment: Mapping[str, str], read_text: Callable[[str], str | None]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """--env comes above --env-file, whatever their order; a name alone takes its value from here."""
    lines: list[str] = []
    not_read: list[str] = []
    for path in given.get("--env_file", ()):
        text = read_text(path)
        if text is None:
            not_read.append(path)
        lines += [line.strip() for line in (text or "").splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, str] = {}
    for line in (*lines, *given.get("--env", ())):
        name, equals, value = line.partition("=")
        if equals:
            found[name] = value
        elif name in environment:
            found[name] = environment[name]
    return found, tuple(not_read)


def _sources(option: str, texts: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for text in texts:
        source, _, rest = text.partition(":")
        target = rest.partition(":")[0]
        if option == "--mount":
            fields = dict(field.partition("=")[::2] for field in text.split(","))
            source = fields.get("source") or fields.get("src", "")
            source = source if fields.get("type") == "bind" else ""
            target = fields.get("target") or fields.get("dst") or fields.get("destination", "")
        if source and target:
            yield source, f"{option} {text}", target


def _volumes(texts: tuple[str, ...] | list[str]) -> list[tuple[str, str]]:
    parts = (text.split(":") for text in texts)
    return [(part[0] if part[0].startswith(("/", ".", "~")) else "", part[1]) for part in parts if part[1:]]


def _mounts(texts: tuple[str, ...] | list[str]) -> list[tuple[str, str]]:
    found = []
    for text in texts:
        fields = dict(field.partition("=")[::2] for field in text.split(","))
        target = fields.get("target") or fields.get("dst") or fields.get("destination", "")
        source = fields.get("source") or fields.get("src", "")
        if target:
            found.append((source if fields.get("type") == "bind" else "", target))
    return found
