"""What `docker run` of CMD lacks for a training, by its own flags: mounts that are not there, GPUs, files of variables;
and the whole line with what the problems of a report ask for."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diag.knowledge.checkpoint_args import named_paths
from diag.launch.launchers.command import Container
from diag.launch.launchers.command.compose import as_service
from diag.launch.launchers.command.options import read_options
from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.container import daemon_settings
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line

# docker/cli, cli/compose/loader/volume.go and moby, volume/local: what a volume's name may be
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
# One value each: a new one takes the place of what is there. Of the others only the same name does (--env A=, --ulimit B=).
_SINGLE = ("--network", "--shm_size", "--ipc", "--gpus", "--pids_limit", "--memory")
_WIDTH = 100


def check_container(
    facts: LaunchFacts,
    folder: Path = Path(),
    gpus: Path = Path("/proc/driver/nvidia/gpus"),
    root: Path = Path("/"),
) -> Iterator[Line]:
    """Of the container that CMD makes on this machine; nothing where there is none."""
    container = facts.container
    if container is None:
        return
    for path in container.not_read:
        key = "computed" if is_computed(path) else "missing"
        yield line(f"container.env-file-{key}", path=path, container=container)
    away = _daemon_elsewhere(container, facts.inherited, root)
    if away and container.sources:
        yield line("container.mounts-elsewhere", why=away)
    yield from _mount_lines(container, None if away else folder)
    if not away:
        yield from _gpu_lines(container, gpus, daemon_settings(root))


def _daemon_elsewhere(container: Container, environment: Mapping[str, str], root: Path) -> str:
    """Why the folders of the engine are not those here; "" where they are."""
    before = container.words[1 : container.words.index("run")]
    if any(
        word.startswith(("-H", "--host", "-c", "--context", "--url", "--remote", "-r")) for word in before
    ):
        return f"`{container.engine} {before[0]}` may be another machine's"
    host = environment.get("DOCKER_HOST", "")
    if host and not host.startswith(("unix:", "npipe:", "fd:")):
        return f"DOCKER_HOST={host.partition('://')[2].rpartition('@')[2]}"
    inside = any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv"))
    return "diag itself runs in a container" if inside else ""


def _mount_lines(container: Container, folder: Path | None) -> Iterator[Line]:
    """One for each thing that is wrong, with all mounts that it is true of. `folder`: CMD's, None where its files are not
    to be seen."""
    wrong: dict[str, list[tuple[str, str, str]]] = {}
    for source, option, inside in container.sources:
        key = "" if is_computed(source) else _mount(container, source, option, inside, folder)
        wrong.setdefault(key, []).append((source, option, inside))
    for key, mounts in wrong.items():
        if key:
            sources, options, insides = (", ".join(parts) for parts in zip(*mounts, strict=True))
            values = {"container": container, "options": options, "sources": sources, "inside": insides}
            yield line(f"container.mount-{key}", example=f"-v /PATH:{mounts[0][2]}", **values)


def _mount(container: Container, source: str, option: str, inside: str, folder: Path | None) -> str:
    """What is wrong with it; "" for nothing."""
    bind = option.startswith("--mount")
    if not source.startswith(("/", ".")):
        return "" if _VOLUME.fullmatch(source) and not bind else "refused"
    if folder is None or (folder / source).exists():
        return ""
    if container.engine == "podman" or bind:
        return "missing"
    return "empty" if _reads(container, inside) else "new"


def _reads(container: Container, inside: str) -> bool:
    """Whether what the container starts names something in this folder that it does not only save to."""
    words = list(container.inner)
    if "-c" in words[:-1]:
        with contextlib.suppress(ValueError):  # quotes that do not close
            words = shlex.split(words[words.index("-c") + 1])
    saved = {item.path for item in named_paths(words) if item.role == "save"}
    within = re.compile(rf"(?<![\w/.-]){re.escape(inside.rstrip('/'))}(?![\w.-])")
    return any(within.search(word) for word in words if word not in saved)


def _gpu_lines(container: Container, gpus: Path, settings: Mapping[str, Any]) -> Iterator[Line]:
    """Only where this machine has NVIDIA's GPUs: docker gives none without being asked."""
    if container.engine == "podman" or not gpus.is_dir() or not any(gpus.iterdir()):
        return
    asked = container.gpus or container.runtime or container.is_privileged
    devices = any("nvidia" in device for device in container.devices)
    if not asked and not devices and settings.get("default-runtime", "runc") == "runc":
        yield line("container.no-gpus", container=container)


def corrected(container: Container, lines: Iterable[Line], *, sudo: bool = False) -> str:
    """The `docker run` line with all that the problems among `lines` ask for; of a compose file what its service lacks;
    "" where they ask for nothing."""
    asked = [one.adds for one in lines if one.status == "problem" and one.adds]
    words = list(dict.fromkeys(word for text in asked for word in shlex.split(text)))
    if words and container.by_compose:
        service = next((word[7:] for word in container.words if word.startswith("--name=")), "")
        return as_service(service, words)
    return _written(_merged(container.words, words), sudo=sudo) if words else ""


def _merged(words: Sequence[str], adds: Sequence[str]) -> list[list[str]]:
    """The line in pieces, an option and its value each. With --network=host nothing is published.

    >>> added = ["--network=host", "--env=A=2", "--shm-size=16g"]
    >>> merged = _merged("docker run -it -p 1:1 -e A=1 --shm-size 1g img x -p 2".split(), added)
    >>> " | ".join(map(" ".join, merged))
    'docker run | -it | --network=host | -e A=2 | --shm-size 16g | img | x -p 2'
    """
    new = {_key(*word.partition("=")[::2]): word for word in adds}
    begin = words.index("run") + 1
    end = len(words) - len(read_options(words[begin:], "docker")[1])
    kept: list[list[str]] = []
    place = begin
    while place < end:
        given, left = read_options([words[place], "value", "image"], "docker")
        piece = list(words[place : place + 3 - len(left)])
        place += len(piece)
        name, (value, *_) = next(iter(given.items()), ("", [""]))
        if name == "--publish" and "--network=host" in adds:
            continue
        added = new.pop(_key(name, piece[1] if len(piece) > 1 else value), "").partition("=")[2]
        if added:
            first = piece[0] if len(piece) > 1 else piece[0].partition("=")[0]
            piece = [first, added] if len(piece) > 1 else [f"{first}={added}"]
        kept.append(piece)
    letters = next((at for at, piece in enumerate(kept) if not _is_switch(piece)), len(kept))
    added_pieces = [[word] for word in new.values()]
    return [
        list(words[:begin]), *kept[:letters], *added_pieces, *kept[letters:], *([word] for word in words[end : end + 1]),
        *([list(words[end + 1 :])] if words[end + 1 :] else []),
    ]  # fmt: skip


def _is_switch(piece: Sequence[str]) -> bool:
    return len(piece) == 1 and "=" not in piece[0]


def _key(name: str, value: str) -> tuple[str, str]:
    """What two options must have in common for the later one to take the place of the other."""
    name = name.replace("-", "_").replace("__", "--", 1)
    return name, "" if name in _SINGLE else value.partition("=")[0]


def _written(pieces: Sequence[Sequence[str]], *, sudo: bool) -> str:
    """On lines that a shell joins, an option and its value on one."""
    rows = ["sudo"] if sudo else []
    for piece in map(shlex.join, pieces):
        if rows and len(rows[-1]) + len(piece) < _WIDTH:
            rows[-1] += f" {piece}"
        else:
            rows.append(piece)
    return " \\\n  ".join(rows)
