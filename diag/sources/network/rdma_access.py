"""What one rank's process has of RDMA: device nodes seen and held open, libraries mapped and to be found, the
right to lock memory, the container it runs in, and NCCL's configuration files. Nothing of it is loaded,
opened or run.

Read seldom: a memory map of a rank has thousands of lines, and reading it waits for the rank's own changes of
it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from diag.knowledge.nccl_filters import parse_conf
from diag.model import Payload, Record
from diag.model.observations import Observation, RdmaAccess, Unparsed
from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import (
    PROC,
    colon_fields,
    read_environ,
    read_process,
    read_raw,
    read_text,
    same_namespace,
)
from diag.sources.payload import mapping, rows, texts, whole, word

SOURCE = "rdma_access"

_MOST_FDS = 16384  # 15 us each
_FD_SECONDS = 0.5
_MOST_MAP_BYTES = 32 << 20  # 65,530 lines (vm.max_map_count) of 200 bytes and more
_MOST_NAMES = 64
_MOST_CONF_BYTES = 64 * 1024

Environment = Mapping[str, str]


class RdmaAccessReader:
    """Reads one process. Not thread-safe."""

    def __init__(self, pid: int, start_ticks: int = 0, root: Path = PROC) -> None:
        self.pid = pid
        self._start_ticks = start_ticks
        self._base = f"{os.fspath(root)}/{pid}"
        self._proc = root

    def sample(self) -> Payload:
        """What it has now; None for what cannot be read. Raises ProcessLookupError when it is gone."""
        self._same_process()
        environment = read_environ(self.pid, self._proc)
        with contextlib.ExitStack() as held:
            return self._sample(environment, self._view(held))

    def _view(self, held: contextlib.ExitStack) -> _RankFiles | None:
        """None where its root cannot be seen."""
        if not os.access(f"{self._base}/root/.", os.X_OK):
            return None
        try:
            return _RankFiles(held.enter_context(JobFiles(self.pid, self._proc)))
        except OSError:
            return None

    def _sample(self, environment: Environment | None, view: _RankFiles | None) -> Payload:
        libraries = self._mapped()
        payload = {
            "pid": self.pid,
            "nodes": device_nodes(self.pid, self._proc),
            "open": self._open_nodes(),
            "mapped": libraries,
            "verbs": None,
            "complete": environment is not None,
            "providers": None,
            **lock_rights(self._base),
            "container": self._container(view, environment),
            "nccl_conf": [],
        }
        if view is not None:
            folders = self._library_folders(view, environment or {})
            payload["verbs"], payload["providers"] = _find_verbs(view, folders)
            payload["nccl_conf"] = self._nccl_conf(view, environment)
        self._same_process()  # else a part of it may be of another one under the same pid
        return payload

    def _same_process(self) -> None:
        process = read_process(self.pid, self._proc)
        if process is None or process.state in "ZX" or self._start_ticks not in (0, process.ticks):
            raise ProcessLookupError(f"process {self.pid} is gone")
        self._start_ticks = process.ticks

    def _open_nodes(self) -> list[str] | None:
        """Device nodes of RDMA among its open files; None where it has too many to read all, and none was
        found."""
        found: set[str] = set()
        until = time.monotonic() + _FD_SECONDS
        try:
            with os.scandir(f"{self._base}/fd") as entries:
                for number, entry in enumerate(entries):
                    try:
                        node = _NODE.search(os.readlink(entry.path))
                    except FileNotFoundError:
                        continue  # closed since
                    if node is not None:
                        found.add(node[1])
                    if number >= _MOST_FDS or (number % 256 == 255 and time.monotonic() > until):
                        return sorted(found) if found else None
        except OSError:
            return None
        return sorted(found)

    def _mapped(self) -> list[str] | None:
        """Paths of libraries that have to do with networks."""
        found: dict[str, None] = {}
        size, rest = 0, b""
        try:
            with open(f"{self._base}/maps", "rb", buffering=0) as maps:
                while data := maps.read(1 << 16):
                    size += len(data)
                    if size > _MOST_MAP_BYTES:
                        return None  # libraries are at the end: what was read would mislead
                    data = rest + data
                    whole, _, rest = data.rpartition(b"\n")
                    found.update(
                        dict.fromkeys(
                            path.decode("utf-8", "replace") for path in _LIBRARY.findall(whole + b"\n")
                        )
                    )
        except OSError:
            return None
        if not size:  # a zombie, or a kernel thread
            return None
        return list(found)[:_MOST_NAMES]

    def _library_folders(self, view: _RankFiles, environment: Environment) -> list[str]:
        """Where dlopen looks, in its order: LD_LIBRARY_PATH, the interpreter's own prefix (conda's RPATH),
        ld.so.cache, defaults.

        ld.so.conf is not among them: ldconfig reads it, the loader reads the cache.
        """
        folders = [
            path
            for path in re.split("[:;]", environment.get("LD_LIBRARY_PATH", ""))[:_MOST_NAMES]
            if path[:1] == "/"
        ]
        try:
            program = os.readlink(f"{self._base}/exe")
        except OSError:
            program = ""
        prefix = str(PurePosixPath(program).parent.parent)
        if view.exists(f"{prefix}/conda-meta"):
            folders.append(f"{prefix}/lib")
        cache = view.read("/etc/ld.so.cache", 8 << 20) or b""
        folders += [found.decode("utf-8", "replace").rpartition("/")[0] for found in _CACHED.findall(cache)]
        triple = f"{os.uname().machine}-linux-gnu"
        folders += [f"/lib/{triple}", f"/usr/lib/{triple}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
        once: dict[object, str] = {}  # /lib is /usr/lib on most
        for folder in dict.fromkeys(folders):
            once.setdefault(view.place(folder) or folder, folder)
        return list(once.values())

    def _container(self, view: _RankFiles | None, environment: Environment | None) -> Payload:
        marks = {name: view.exists(path) if view else None for name, path in _MARKS.items()}
        names = [
            name
            for name in ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")
            if environment is not None and name in environment
        ]
        return {"marks": marks, "environment": names, "cgroup": read_text(f"{self._base}/cgroup")[:8192]}

    def _nccl_conf(self, view: _RankFiles, environment: Environment | None) -> list[list[str]]:
        """[file, name, value] as NCCL sets them: the user's file before the machine's, what is set already
        stays.

        NCCL's own words: `initEnv` and `setEnvFile` of src/misc/param.cc.
        """
        # read from 2.23 on, and then ~/.nccl.conf is not
        named = (environment or {}).get("NCCL_CONF_FILE", "")
        if environment is None:
            files = []  # which one it is cannot be seen
        elif named:
            files = [named if named[0] == "/" else os.path.join(self._folder(), named)]
        else:
            home = self._home(view) or environment.get("HOME", "")
            files = [f"{home}/.nccl.conf"] if home.startswith("/") else []
        found: dict[str, list[str]] = {}
        for file in dict.fromkeys([*files, "/etc/nccl.conf"]):
            text = (view.read(file, _MOST_CONF_BYTES) or b"").decode("utf-8", "replace")
            for name, value in parse_conf(text).items():
                if _CONF_NAME.match(name) and len(found) < 4 * _MOST_NAMES:
                    found.setdefault(name, [file, name, value[:1000]])
        return list(found.values())

    def _folder(self) -> str:
        try:
            return os.readlink(f"{self._base}/cwd")
        except OSError:
            return "/"

    def _uid_inside(self, uid: int) -> int:
        """What a process of another user namespace calls this uid of ours; itself where that cannot be seen."""
        if same_namespace("user", self.pid, self._proc) is not False:
            return uid
        for line in read_text(f"{self._base}/uid_map").split("\n"):
            fields = line.split()
            if len(fields) == 3 and all(field.isdecimal() for field in fields):
                inner, outer, count = map(int, fields)
                if outer <= uid < outer + count:
                    return uid - outer + inner
        return uid

    def _home(self, view: _RankFiles) -> str:
        """As getpwuid says it, for NCCL does not read HOME; empty where the user is in no file (LDAP)."""
        uids = colon_fields(read_text(f"{self._base}/status")).get("Uid", "").split()
        uid = self._uid_inside(int(uids[0])) if uids and uids[0].isdecimal() else None
        for line in (view.read("/etc/passwd", 1 << 20) or b"").decode("utf-8", "replace").split("\n"):
            fields = line.split(":")
            if len(fields) == 7 and fields[2] == str(uid):
                return fields[5]
        return ""


def device_nodes(pid: int, proc: str | os.PathLike[str] = PROC) -> list[str] | None:
    """Names in /dev/infiniband of the process; None when that cannot be read."""
    if not os.access(f"{os.fspath(proc)}/{pid}/root/.", os.X_OK):
        return None
    try:
        with JobFiles(pid, proc) as files:
            return files.names("/dev/infiniband")[: 4 * _MOST_NAMES]
    except (FileNotFoundError, NotADirectoryError):
        # A root that may not be followed is EACCES; one that was, without the folder, has none.
        return []
    except OSError:
        return None


def lock_rights(base: str) -> dict[str, str | None]:
    """What decides whether a process may lock memory beyond its limit, by its /proc folder: see `ipc_lock`."""
    uid_map = read_raw(f"{base}/uid_map")
    return {
        "cap_eff": colon_fields(read_text(f"{base}/status")).get("CapEff"),
        "uid_map": None if uid_map is None else " ".join(uid_map[:400].decode("ascii", "replace").split()),
    }


# /proc/PID/fd of a process with a context of soft-RoCE, Linux 6.1, 2026-11-20:
#   /dev/infiniband/uverbs0
#   anon_inode:[infinibandevent]
_NODE = re.compile(r"/dev/infiniband/((?:uverbs|umad|issm|ucm|rdma_cm)\d*)(?: \(deleted\))?$", re.ASCII)
# /proc/PID/maps of the same process, its last column:
#   /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0
#   /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
#   /usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0
# and of a torch 2.11 wheel: /usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2
_LIBRARY = re.compile(
    rb"\s(/[^\n]*/lib(?:ibverbs|mlx[45]|efa|rdmacm|nccl|rccl|hccl|ucs|ucp|uct|hcoll|fabric|bnxt_re|sharp|[a-z0-9_]+-rdmav\d+)"
    rb"[\w.+-]*\.so[\d.]*)(?: \(deleted\))?\n"
)
# glibc's ld.so.cache holds whole paths, each closed by a zero byte; which of them belongs to which ABI is not
# asked.
_CACHED = re.compile(rb"(?:^|\0)(/[^\0\n]{1,4000}/libibverbs\.so\.1)(?=\0)")
_CONF_NAME = re.compile(r"(?:NCCL|RCCL|HCCL|UCX|FI|OFI|RDMAV|MLX5|IBV|TORCH_NCCL)_[A-Z0-9_]{1,80}$", re.ASCII)
_MARKS = {"kubernetes": "/run/secrets/kubernetes.io", "docker": "/.dockerenv", "podman": "/run/.containerenv"}


def _find_verbs(view: _RankFiles, folders: Iterable[str]) -> tuple[list[str], list[str]]:
    """Files called libibverbs.so.1, and the drivers beside them (rdma-core:
    FOLDER/libibverbs/libmlx5-rdmav34.so)."""
    libraries, providers = [], []
    for folder in folders:
        if view.exists(f"{folder}/libibverbs.so.1"):
            libraries.append(f"{folder}/libibverbs.so.1")
        for name in view.list(f"{folder}/libibverbs"):
            if "-rdmav" in name and name.endswith(".so") and view.exists(f"{folder}/libibverbs/{name}"):
                providers.append(f"{folder}/libibverbs/{name}")
    for name in view.list("/etc/libibverbs.d"):  # "driver mlx5", or a path of a driver that lies elsewhere
        if name.endswith(".driver"):
            for word in _DRIVER.findall(view.read(f"/etc/libibverbs.d/{name}", 4096) or b""):
                folder, _, stem = word.decode("utf-8", "replace").rpartition("/")
                providers += [
                    f"{folder}/{file}"
                    for file in (view.list(folder) if folder else ())
                    if file.startswith(f"{stem}-rdmav") and view.exists(f"{folder}/{file}")
                ]
    return libraries[:_MOST_NAMES], list(dict.fromkeys(providers))[:_MOST_NAMES]


# /etc/libibverbs.d/rxe.driver, rdma-core 44 (Debian 12):
#   driver rxe
_DRIVER = re.compile(rb"^\s*driver\s+(\S{1,200})", re.MULTILINE)


class _RankFiles:
    """Files by the paths that a rank knows them by: links are followed from its root, and with its rights."""

    def __init__(self, files: JobFiles) -> None:
        self._files = files

    def place(self, path: str) -> tuple[int, int] | None:
        """The same for all names of a folder; None for what is not there, or leads in circles."""
        try:
            found = self._files.stat(path)
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino

    def exists(self, path: str) -> bool:
        return self.place(path) is not None

    def list(self, path: str) -> list[str]:
        try:
            return self._files.names(path)[: 4 * _MOST_NAMES]
        except (OSError, ValueError):
            return []

    def read(self, path: str, most: int) -> bytes | None:
        try:
            return self._files.read(path, most)
        except (OSError, ValueError):
            return None


# --- understanding it

_IPC_LOCK = 14  # CAP_IPC_LOCK, linux/capability.h
_WHOLE_MAP = "0 0 4294967295"  # of the first user namespace; in another one no capability lets lock memory beyond the limit
# libibverbs.so.1.14.44.0 -> libibverbs; libnccl-net-ofi.so -> libnccl-net-ofi
_STEM = re.compile(r"/(lib[^/]+?)\.so[\d.]*$", re.ASCII)
_PROVIDER = re.compile(r"/lib([^/]+)-rdmav\d+\.so$", re.ASCII)


def parse(record: Record) -> Iterator[Observation]:
    """One RdmaAccess."""
    payload = record.payload
    if (pid := whole(mapping(payload).get("pid"))) is None:
        yield Unparsed(record.rank, SOURCE, "no process", str(payload)[:200])
        return
    nodes, open_nodes, mapped = (texts(payload.get(name)) for name in ("nodes", "open", "mapped"))
    verbs, providers = texts(payload.get("verbs")), texts(payload.get("providers"))
    stems = _found(_STEM, mapped)
    yield RdmaAccess(
        rank=record.rank,
        pid=pid,
        device_nodes=nodes,
        open_nodes=open_nodes,
        mapped=stems,
        verbs_library=_verbs_library(verbs, stems, payload.get("complete") is True),
        providers=_found(_PROVIDER, providers),
        ipc_lock=ipc_lock(payload.get("cap_eff"), payload.get("uid_map")),
        container=_container_kind(payload.get("container")),
        nccl_conf=tuple(
            (file, name, value) for file, name, value in rows(payload.get("nccl_conf"), str, str, str)
        ),
    )


def _found(form: re.Pattern[str], paths: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return (
        None if paths is None else tuple(sorted({found[1] for path in paths if (found := form.search(path))}))
    )


def _verbs_library(
    found: tuple[str, ...] | None, mapped: tuple[str, ...] | None, complete: bool
) -> bool | None:
    if "libibverbs" in (mapped or ()) or found:
        return True
    return False if found is not None and complete else None  # LD_LIBRARY_PATH was not seen: it may be there


def ipc_lock(capabilities: object, uid_map: object) -> bool | None:
    """Whether CAP_IPC_LOCK lets a process lock memory beyond its limit; None where that was not to be seen."""
    if not isinstance(capabilities, str) or not re.fullmatch(r"[0-9a-f]{1,16}", capabilities):
        return None
    if isinstance(uid_map, str) and uid_map != _WHOLE_MAP:
        return False
    return bool(int(capabilities, 16) >> _IPC_LOCK & 1)


def _container_kind(facts: object) -> str:
    """Who must be asked to change limits and devices. Apptainer and Singularity keep those of where they are
    started: they count as slurm inside a Slurm job, else as none."""
    known = mapping(facts)
    mark = {name for name, there in mapping(known.get("marks")).items() if there is True}
    named = set(texts(known.get("environment")) or ())
    text = word(known.get("cgroup"), 10_000)
    if "KUBERNETES_SERVICE_HOST" in named or "kubernetes" in mark or "kubepods" in text:
        return "kubernetes"
    if "podman" in mark or "libpod-" in text:  # podman has /.dockerenv too, in some versions
        return "podman"
    if "docker" in mark or "/docker/" in text or "docker-" in text:
        return "docker"
    return "slurm" if "SLURM_JOB_ID" in named or "/slurm" in text else ""
