"""Real processes where that is possible: with libibverbs loaded, in a root of their own, closed to the
reader, with thousands of files. What no machine of ours has (a conda's interpreter, a container's marks) is a
small /proc."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import RdmaAccess, Unparsed
from diag.sources.network.rdma_access import RdmaAccessReader, parse
from tests.blocked import Start, starting

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root to change the root folder, or to become somebody else"
)
TRIPLE = f"{os.uname().machine}-linux-gnu"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code that prints "ready" once it is; gives its pid."""
    with starting() as started:
        yield lambda code, *words, **more: started(
            f"{code}\nimport sys\nready()\nsys.stdin.read()", *words, **more
        )


def told(payload: Any) -> RdmaAccess:
    (found,) = parse(Record("rdma_access", payload, rank=3))
    assert isinstance(found, RdmaAccess) and found.rank == 3
    return found


def read(pid: int, root: Path = Path("/proc")) -> RdmaAccess:
    return told(RdmaAccessReader(pid, root=root).sample())


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


CHROOT = "import os, sys\nos.chroot(sys.argv[1]); os.chdir('/')\nkept = [os.open(path, os.O_RDONLY) for path in sys.argv[2:]]"


# --- real processes
# ------------------------------------------------------------------------------------------


def test_process_with_nothing_of_rdma_has_none_and_that_is_known(start: Start) -> None:
    access = read(start("pass"))

    assert access.open_nodes == () and access.mapped == ()
    there = Path("/dev/infiniband")
    assert access.device_nodes == (tuple(sorted(os.listdir(there))) if there.is_dir() else ())
    effective = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    )
    assert access.ipc_lock is bool(int(effective.split()[1], 16) >> 14 & 1)


@pytest.mark.skipif(ctypes.util.find_library("ibverbs") is None, reason="no libibverbs here")
def test_library_that_a_process_has_loaded_is_named(start: Start) -> None:
    access = read(start("import ctypes\nkept = ctypes.CDLL('libibverbs.so.1')"))

    assert access.mapped is not None and "libibverbs" in access.mapped
    assert access.verbs_library is True


def test_library_is_found_where_the_loader_finds_it(start: Start) -> None:
    try:
        ctypes.CDLL("libibverbs.so.1")
        loads = True
    except OSError:
        loads = False

    assert read(start("pass", environment={})).verbs_library is loads


@NEEDS_ROOT
def test_rank_in_a_container_is_seen_by_its_own_files(start: Start, tmp_path: Path) -> None:
    # given an image with two devices, of which the process holds one, and a driver for one of two cards
    root = files(tmp_path / "image", {
        "dev/infiniband/uverbs0": "", "dev/infiniband/uverbs1": "", "dev/infiniband/rdma_cm": "", ".dockerenv": "",
        f"usr/lib/{TRIPLE}/libibverbs.so.1.14.44.0": "", f"usr/lib/{TRIPLE}/libmlx5.so.1.24.44.0": "",
        "etc/libibverbs.d/mlx5.driver": "driver mlx5\n", "etc/libibverbs.d/efa.driver": "driver efa\n",
    })  # fmt: skip
    library = root / "usr/lib" / TRIPLE
    (library / "libibverbs.so.1").symlink_to("libibverbs.so.1.14.44.0")
    (library / "libibverbs").mkdir()
    # as the rank sees it
    (library / "libibverbs/libmlx5-rdmav34.so").symlink_to(f"/usr/lib/{TRIPLE}/libmlx5.so.1.24.44.0")
    # of a package that was taken out
    (library / "libibverbs/libefa-rdmav34.so").symlink_to("../libefa.so.1.2.44.0")

    access = read(start(CHROOT, str(root), "/dev/infiniband/uverbs0", environment={}))

    assert access.device_nodes == ("rdma_cm", "uverbs0", "uverbs1")
    assert access.open_nodes == ("uverbs0",)
    assert (access.verbs_library, access.providers) == (True, ("mlx5",))
    assert access.container == "docker"


@NEEDS_ROOT
def test_image_without_the_library_is_not_given_ours(start: Start, tmp_path: Path) -> None:
    # given links of the image that lead out of it, to a file that is only there outside
    outside = files(tmp_path, {"outside/libibverbs.so.1": ""})
    root = files(tmp_path / "image", {"dev/null": ""})
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib64").symlink_to(outside / "outside")
    (root / "usr/lib" / TRIPLE).symlink_to("../../../outside")

    access = read(start(CHROOT, str(root), environment={}))

    assert (access.verbs_library, access.providers, access.device_nodes) == (False, (), ())


@NEEDS_ROOT
def test_links_that_lead_in_circles_are_no_library(start: Start, tmp_path: Path) -> None:
    root = files(tmp_path / "image", {"dev/null": ""})
    (root / "lib").symlink_to("/usr/lib")
    (root / "usr").symlink_to("/lib")

    assert read(start(CHROOT, str(root), environment={})).verbs_library is False


def test_device_among_thousands_of_open_files_is_found_in_time(start: Start, tmp_path: Path) -> None:
    device = tmp_path / "dev/infiniband/uverbs7"
    files(tmp_path, {"dev/infiniband/uverbs7": ""})
    many = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)
    code = (
        "import os, resource, sys\nlimit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(int(sys.argv[1]))]; last = os.open(sys.argv[2], os.O_RDONLY)"
    )
    pid = start(code, str(many), str(device))

    began = time.thread_time()
    access = read(pid)

    assert access.open_nodes == ("uverbs7",)
    assert time.thread_time() - began < 1.0  # 60 ms here for 10,000


def test_library_behind_thousands_of_mappings_is_found(tmp_path: Path, start: Start) -> None:
    library = tmp_path / "libnccl-net-ofi.so.0.0.0"
    library.write_bytes(bytes(mmap.PAGESIZE))
    code = (
        "import mmap, sys\nfile = open(sys.argv[1], 'rb')\nkept = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)]\n"
        "for index in range(20000):\n"
        "    kept.append(mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | (index & 1) * mmap.PROT_WRITE))"
    )

    pid = start(code, str(library))
    access = read(pid)

    assert len(Path(f"/proc/{pid}/maps").read_text().splitlines()) > 20000
    assert access.mapped == ("libnccl-net-ofi",)


def test_process_that_is_gone_is_no_process_without_rdma(start: Start) -> None:
    pid = start("pass")
    reader = RdmaAccessReader(pid)
    reader.sample()
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie: its pid is still its own

    with pytest.raises(ProcessLookupError):
        reader.sample()
    with pytest.raises(ProcessLookupError):
        RdmaAccessReader(os.getpid(), start_ticks=1).sample()  # its pid belongs to another one by now


@NEEDS_ROOT
def test_what_another_user_may_not_see_is_not_known() -> None:
    # given a reader without rights on the target (us); imported before it gives up its rights
    code = (
        "import json, os, sys\nfrom diag.sources.network.rdma_access import RdmaAccessReader\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(json.dumps(RdmaAccessReader(int(sys.argv[1])).sample()))"
    )
    home = str(Path(__file__).parents[2])
    answer = subprocess.run([sys.executable, "-c", code, str(os.getpid())], check=True, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": home})  # fmt: skip

    access = told(json.loads(answer.stdout))

    assert (access.device_nodes, access.open_nodes, access.mapped) == (None, None, None)
    assert (access.verbs_library, access.providers) == (None, None)
    assert access.ipc_lock is not None  # status is open to all


@NEEDS_ROOT
def test_root_of_a_user_namespace_is_who_it_is_there_and_may_lock_no_more_than_its_limit(
    start: Start,
) -> None:
    code = "import ctypes, os\nassert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0"  # CLONE_NEWUSER
    try:
        pid = start(code)
    except AssertionError:
        pytest.skip("no user namespaces here")
    Path(f"/proc/{pid}/uid_map").write_text("65534 0 1")

    assert read(pid).ipc_lock is False
    assert int(RdmaAccessReader(pid).sample()["cap_eff"], 16) >> 14 & 1  # though it looks as if
    assert RdmaAccessReader(pid)._uid_inside(0) == 65534  # as getpwuid(getuid()) of it asks for


# --- a small /proc
# -------------------------------------------------------------------------------------------


STAT = "7 (python3) S 1 7 7 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 20487 1 1"


def machine(
    tmp_path: Path,
    image: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    **proc: str,
) -> Path:
    """/proc of a machine with process 7."""
    base = files(tmp_path / "7", {
        "stat": STAT, "maps": "", "cgroup": "0::/\n", "uid_map": "         0          0 4294967295\n",
        "status": "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
        "environ": "\0".join(f"{name}={value}" for name, value in (environment or {}).items()),
    })  # fmt: skip
    files(base, proc)
    (base / "fd").mkdir()
    (base / "root").mkdir()
    files(base / "root", {"etc/hostname": "", **(image or {})})
    return tmp_path


def test_library_of_the_conda_environment_is_found_by_its_interpreter(tmp_path: Path) -> None:
    proc = machine(tmp_path, {
        "opt/conda/envs/train/bin/python3.11": "", "opt/conda/envs/train/conda-meta/history": "",
        "opt/conda/envs/train/lib/libibverbs.so.1": "", "opt/conda/envs/train/lib/libibverbs/libmlx5-rdmav57.so": "",
    })  # fmt: skip
    (proc / "7/exe").symlink_to("/opt/conda/envs/train/bin/python3.11")

    access = read(7, proc)

    assert (access.verbs_library, access.providers) == (True, ("mlx5",))


def test_library_in_the_ranks_library_path_is_found(tmp_path: Path) -> None:
    image = {"opt/amazon/efa/lib/libibverbs.so.1": "", "opt/amazon/efa/lib/libibverbs/libefa-rdmav34.so": ""}
    proc = machine(tmp_path, image, {"LD_LIBRARY_PATH": "/nowhere:/opt/amazon/efa/lib::relative"})

    assert (read(7, proc).verbs_library, read(7, proc).providers) == (True, ("efa",))


def test_library_that_ldconfig_knows_is_found_and_one_that_it_still_knows_is_not(tmp_path: Path) -> None:
    # strings of ld.so.cache lie one behind the other, each closed by a zero byte
    cache = "glibc-ld.so.cache1.1\0libibverbs.so.1\0/usr/local/ofed/lib/libibverbs.so.1\0libz.so.1\0"
    proc = machine(tmp_path, {"etc/ld.so.cache": cache, "usr/local/ofed/lib/libibverbs.so.1": ""})
    found = read(7, proc).verbs_library
    (proc / "7/root/usr/local/ofed/lib/libibverbs.so.1").unlink()

    assert (found, read(7, proc).verbs_library) == (True, False)


def test_absence_is_not_claimed_where_the_library_path_may_not_be_seen(tmp_path: Path) -> None:
    proc = machine(tmp_path)
    (proc / "7/environ").unlink()

    assert read(7, proc).verbs_library is None


@pytest.mark.parametrize(("environment", "image", "cgroup", "kind"), [
    ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, {}, "0::/\n", "kubernetes"),
    ({}, {}, "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod3f.slice/cri-9a.scope\n", "kubernetes"),
    ({}, {".dockerenv": ""}, "0::/\n", "docker"),
    ({}, {}, "12:memory:/docker/9a1f\n", "docker"),
    ({"container": "podman"}, {"run/.containerenv": "", ".dockerenv": ""}, "0::/\n", "podman"),
    ({"SLURM_JOB_ID": "17"}, {}, "0::/system.slice/slurmstepd.scope/job_17/step_0\n", "slurm"),
    ({"SLURM_JOB_ID": "17", "APPTAINER_NAME": "train.sif"}, {"singularity": ""}, "0::/user.slice\n", "slurm"),
    ({"APPTAINER_NAME": "train.sif"}, {".singularity.d/runscript": ""}, "0::/user.slice\n", ""),
    ({"SLURM_JOB_ID": "17"}, {".dockerenv": ""}, "0::/\n", "docker"),
    ({}, {}, "0::/user.slice/user-1000.slice/session-3.scope\n", ""),
])  # fmt: skip
def test_who_runs_the_container_is_told(
    tmp_path: Path, environment: dict[str, str], image: dict[str, str], cgroup: str, kind: str
) -> None:
    assert read(7, machine(tmp_path, image, environment, cgroup=cgroup)).container == kind


@pytest.mark.parametrize(("capabilities", "uid_map", "may"), [
    ("0000000000004000", "0 0 4294967295", True),
    ("00000000a80425fb", "0 0 4294967295", False),  # docker's defaults
    ("000001ffffffffff", "0 100000 65536", False),  # root of a user namespace: the kernel asks the first one
    ("", "0 0 4294967295", None),
])  # fmt: skip
def test_right_to_lock_memory_is_that_of_the_kernel(
    tmp_path: Path, capabilities: str, uid_map: str, may: bool | None
) -> None:
    proc = machine(
        tmp_path,
        status=f"Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t{capabilities}\n",
        uid_map=uid_map + "\n",
    )

    assert read(7, proc).ipc_lock is may


CONF = "# of mine\n NCCL_ALGO=Ring\nNCCL_IB_DISABLE=1\nNCCL_IB_DISABLE=0\nnonsense\nNCCL_SOCKET_IFNAME=eth0 \nWANDB_API_KEY=x\n"


def test_configuration_files_are_read_as_nccl_reads_them(tmp_path: Path) -> None:
    # given the user's file, found by /etc/passwd and not by HOME, and the machine's
    proc = machine(
        tmp_path,
        {"etc/passwd": "root:x:0:0::/root:/bin/sh\nann:x:1000:1000:Ann:/data/ann:/bin/sh\n", "data/ann/.nccl.conf": CONF,
         "etc/nccl.conf": "NCCL_SOCKET_IFNAME=ib0\nNCCL_DEBUG=WARN\n"},
        {"HOME": "/elsewhere"},
    )  # fmt: skip

    # then what comes first stays, a blank in front is a part of the name (NCCL never asks for it), one behind
    # of the value
    assert read(7, proc).nccl_conf == (
        ("/data/ann/.nccl.conf", "NCCL_IB_DISABLE", "1"),
        ("/data/ann/.nccl.conf", "NCCL_SOCKET_IFNAME", "eth0 "),
        ("/etc/nccl.conf", "NCCL_DEBUG", "WARN"),
    )


def test_named_configuration_file_replaces_the_users(tmp_path: Path) -> None:
    users = "ann:x:1000:1000:Ann:/data/ann:/bin/sh\n"
    image = {"etc/passwd": users, "data/ann/.nccl.conf": CONF, "job/nccl.conf": "NCCL_NET=IB\n"}
    proc = machine(tmp_path, image, {"NCCL_CONF_FILE": "nccl.conf"})
    (proc / "7/cwd").symlink_to("/job")

    assert read(7, proc).nccl_conf == (("/job/nccl.conf", "NCCL_NET", "IB"),)


def test_user_that_stands_in_no_file_is_looked_for_at_home(tmp_path: Path) -> None:
    proc = machine(tmp_path, {"home/ann/.nccl.conf": "NCCL_NET=IB\n"}, {"HOME": "/home/ann"})

    assert read(7, proc).nccl_conf == (("/home/ann/.nccl.conf", "NCCL_NET", "IB"),)


def test_configuration_that_is_a_pipe_holds_nothing_up(tmp_path: Path) -> None:
    proc = machine(tmp_path)
    os.mkfifo(proc / "7/root/etc/nccl.conf")

    assert read(7, proc).nccl_conf == ()


def test_libraries_are_named_without_their_versions(tmp_path: Path) -> None:
    # /proc/PID/maps, soft-RoCE, Linux 6.1 (Debian 12), 2026-11-20, addresses shortened; the last two: a torch
    # 2.11 wheel, HPC-X
    maps = "".join(
        f"7f00-7f01 r--p 00000000 00:02 {inode}   {path}\n"
        for inode, path in enumerate(
            (
                "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0",
                "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
                "/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0",
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2",
                "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",
            )
        )
    )

    access = read(7, machine(tmp_path, maps=maps))

    assert access.mapped == ("libibverbs", "libmlx5", "libnccl", "libnccl-net", "librxe-rdmav34")
    assert access.verbs_library is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NAMES = (
    "nodes",
    "open",
    "mapped",
    "verbs",
    "complete",
    "providers",
    "cap_eff",
    "uid_map",
    "container",
    "nccl_conf",
)


@settings(deadline=None, max_examples=100)
@given(
    JSON
    | st.fixed_dictionaries(
        {"pid": JSON | st.just(7)}, optional=dict.fromkeys(NAMES, JSON | st.lists(st.text()))
    )
)
def test_parse_raises_for_nothing(payload: Any) -> None:
    (found,) = parse(Record("rdma_access", payload))

    assert isinstance(found, (RdmaAccess, Unparsed))
