"""Lists of hosts: the setting `nodes`, DeepSpeed's hostfile, mpirun's, PBS's and LSF's; and what no input may
do."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.launch.launchers.hostlist import mpi_hosts
from diag.launch.launchers.nodes import JobNodes, nodes_of, nodes_of_rank


def of(
    words: str, env: dict[str, str] | None = None, setting: str = "auto", files: dict[str, str] | None = None
) -> JobNodes:
    return nodes_of(words.split(), env or {}, setting, read_text=(files or {}).get)


@pytest.mark.parametrize(
    ("setting", "hosts", "ports"),
    [
        ("a,b", ("a", "b"), ()),
        (" a:9095 , b ", ("a", "b"), (9095, None)),
        ("gpu[01-03]:9100,login", ("gpu01", "gpu02", "gpu03", "login"), (9100, 9100, 9100, None)),
        ("10.0.0.1,10.0.0.2:9096", ("10.0.0.1", "10.0.0.2"), (None, 9096)),
        ("fd00::1,[fd00::2]:9000,[fd00::3]", ("fd00::1", "fd00::2", "fd00::3"), (None, 9000, None)),
        ("127.0.0.1:9095,127.0.0.1:9096", ("127.0.0.1", "127.0.0.1"), (9095, 9096)),
        ("only", ("only",), ()),
        ("@/hosts", ("a", "b", "c"), (9100, None, None)),
        ("@/mpi", ("a", "b"), ()),
    ],
)
def test_hosts_that_the_user_gives_are_the_nodes(
    setting: str, hosts: tuple[str, ...], ports: tuple[int | None, ...]
) -> None:
    files = {"/hosts": "# two\na:9100\n\nb slots=8  # fast\nc\n", "/mpi": "a:8\nb:8\n"}

    found = of("python t.py", {"HOSTNAME": hosts[-1]}, setting, files)

    assert (found.count, found.hosts, found.hub_ports, found.address) == (len(hosts), hosts, ports, hosts[0])
    assert found.launcher == ("hostfile" if setting.startswith("@") else "given")
    assert found.bad == ()


def test_given_hosts_are_in_node_rank_order_and_keep_what_the_launcher_tells() -> None:
    env = {
        "NNODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29501",
        "SLURM_JOB_ID": "7",
    }

    found = of("swift sft", env, "a,b")

    assert (found.node_rank, found.port, found.job) == (1, 29501, "7")
    assert dict(found.origins) == {
        "count": "nodes", "node_rank": "NODE_RANK", "address": "nodes", "port": "MASTER_PORT", "hosts": "nodes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("env", "node_rank"),
    [({"HOSTNAME": "b"}, 1), ({"SLURMD_NODENAME": "a.cluster"}, 0), ({"HOSTNAME": "x"}, None), ({}, None)],
)
def test_place_in_a_given_list_is_found_by_the_own_name_where_no_rank_is_told(
    env: dict[str, str], node_rank: int | None
) -> None:
    assert of("python t.py", env, "a,b").node_rank == node_rank


def test_given_list_of_another_length_than_the_launchers_count_is_taken_and_told() -> None:
    found = of("torchrun --nnodes 4 --node_rank 3 --master_addr a t.py", {}, "a,b")

    assert (found.count, found.node_rank) == (2, None)
    assert found.bad == ("nodes='a,b' names 2 hosts, --nnodes says 4",)


@pytest.mark.parametrize(
    "setting",
    [
        "a[1-",
        "a b;c",
        ",",
        "@/none",
        "@",
        "a:99999",
        "a,a",
        "n[1-99999999]",
        "http://a:1/",
        "[fd00::1",
        "a:b",
        "../x",
        "@/binary",
    ],
)
def test_list_that_cannot_be_read_leaves_what_the_launcher_tells(setting: str) -> None:
    found = of(
        "torchrun --nnodes 2 --node_rank 1 --master_addr a t.py", {}, setting, {"/binary": "\x00\x01\x02"}
    )

    assert (found.count, found.node_rank, found.address, found.hosts) == (2, 1, "a", ())
    assert len(found.bad) == 1
    assert len(found.bad[0]) < 200


HOSTFILE = "# pool\nworker-0 slots=8\nworker-1 slots=8\nworker-2 slots=8\n"


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("deepspeed t.py", ("worker-0", "worker-1", "worker-2")),  # /job/hostfile is the default
        ("deepspeed --hostfile /h t.py", ("worker-0", "worker-1", "worker-2")),
        ("deepspeed --hostfile=/h --num_nodes 2 t.py", ("worker-0", "worker-1")),
        ("deepspeed -H /h --include worker-2@worker-1:0,1 t.py", ("worker-1", "worker-2")),
        ("deepspeed -H /h --exclude worker-0 t.py", ("worker-1", "worker-2")),
        ("deepspeed -H /h --exclude worker-0:0@worker-2:0,1,2,3,4,5,6,7 t.py", ("worker-0", "worker-1")),
        ("python -m deepspeed.launcher.runner --hostfile /h t.py", ("worker-0", "worker-1", "worker-2")),
    ],
)
def test_deepspeeds_hostfile_names_the_nodes(words: str, hosts: tuple[str, ...]) -> None:
    found = of(words, files={"/h": HOSTFILE, "/job/hostfile": HOSTFILE})

    assert (found.count, found.hosts, found.address, found.launcher) == (
        len(hosts),
        hosts,
        hosts[0],
        "deepspeed",
    )
    assert found.node_rank is None  # deepspeed is typed on one machine, which need not be the first
    assert found.bad == ()


def test_deepspeed_without_a_hostfile_is_this_machine_alone() -> None:
    found = of("deepspeed --num_gpus 8 t.py")

    assert (found.count, found.node_rank, found.hosts) == (1, 0, ())


def test_deepspeeds_hostfile_that_is_not_seen_from_here_is_told() -> None:
    found = of("deepspeed --hostfile /h --num_nodes 2 --master_addr a t.py")

    assert (found.count, found.hosts, found.bad) == (2, (), ("--hostfile='/h'",))


def test_line_for_which_deepspeed_gives_up_is_told() -> None:
    found = of("deepspeed --hostfile /h t.py", files={"/h": "worker-0 slots=8\nworker-1\n"})

    assert found.bad == ("/h='worker-1'",)
    assert found.hosts == ()


def test_deepspeeds_launcher_of_one_node_has_all_hosts_in_its_command_line() -> None:
    info = base64.urlsafe_b64encode(json.dumps({"w0": [0, 1], "w1": [0, 1]}).encode()).decode()

    found = of(
        f"python -m deepspeed.launcher.launch --world_info={info} --node_rank=1 --master_addr=10.0.0.1 --master_port=29500"
    )

    assert (found.count, found.node_rank, found.hosts, found.launcher) == (2, 1, ("w0", "w1"), "deepspeed")


@pytest.mark.parametrize(
    ("words", "env", "hosts"),
    [
        ("mpirun --hostfile /h -np 4 python t.py", {}, ("a", "b")),
        ("mpirun --hostfile /h -np 2 python t.py", {}, ()),  # both fit on a
        ("mpirun --hostfile /h -npernode 1 -np 2 python t.py", {}, ("a", "b")),
        ("mpirun --hostfile /h python t.py", {}, ("a", "b", "c")),
        ("mpirun --host a:2,b:2 -np 4 python t.py", {}, ("a", "b")),
        ("mpirun -H a,a,b -np 3 python t.py -n 1", {}, ("a", "b")),
        ("mpiexec.hydra -f /m -n 4 python t.py", {}, ("a", "b")),
        ("mpirun -np 2 python t.py", {}, ()),  # on this machine
        ("mpirun -np 6 python t.py", {"OMPI_MCA_orte_default_hostfile": "/h"}, ("a", "b", "c")),
        ("mpirun -np 4 python t.py", {"PBS_JOBID": "9.x", "PBS_NODEFILE": "/pbs"}, ("a", "b")),
        ("mpirun -np 4 python t.py", {"LSB_JOBID": "9", "LSB_HOSTS": "a a b b"}, ("a", "b")),
        ("mpirun -np 4 python t.py", {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "a 2 b 2"}, ("a", "b")),
        ("mpirun -np 4 python t.py", {"LSB_JOBID": "9", "LSB_DJOB_HOSTFILE": "/pbs"}, ("a", "b")),
        ("mpirun -np 4 python t.py", {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NNODES": "3",
                                      "SLURM_TASKS_PER_NODE": "2(x3)", "SLURM_NODEID": "0"}, ("n1", "n2")),
    ],
)  # fmt: skip
def test_mpiruns_hosts_are_those_that_its_processes_fill(
    words: str, env: dict[str, str], hosts: tuple[str, ...]
) -> None:
    files = {
        "/h": "a slots=2\nb slots = 2 max_slots=4\nc slots=2\n",
        "/m": "a:2\nb:2\nc:2\n",
        "/pbs": "a\na\nb\nb\n",
    }

    found = of(words, env, files=files)

    assert found.hosts == hosts
    assert found.count == max(1, len(hosts))
    assert found.launcher == ("pmi" if "hydra" in words else "openmpi")
    assert found.job == (env.get("PBS_JOBID") or env.get("LSB_JOBID") or env.get("SLURM_JOB_ID") or "")


def test_hostfile_that_mpirun_is_given_and_that_is_not_there_is_told() -> None:
    assert of("mpirun --hostfile /none -np 4 python t.py").bad == ("--hostfile='/none'",)


def test_pbs_lends_its_hosts_to_a_launcher_of_as_many_nodes() -> None:
    env = {"PBS_JOBID": "9.x", "PBS_NODEFILE": "/pbs"}
    files = {"/pbs": "a\na\nb\nb\n"}

    two = of("torchrun --nnodes 2 --node_rank 1 --master_addr a t.py", env, files=files)
    one = of("torchrun --nproc_per_node 8 t.py", env, files=files)

    assert (two.count, two.hosts, two.job, two.launcher) == (2, ("a", "b"), "9.x", "hostfile")
    assert (one.count, one.hosts) == (1, ())


# Open MPI 4.1's hostfile with user@host and slots; Kubeflow's MPI operator 0.4 (012dae5) writes the last two
# forms
@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("root@a slots=4\n", (("a", 4),)),
        ("a\na\nb\n", (("a", 2), ("b", None))),
        ("dpo-worker-0.dpo-worker.ml.svc slots=8\n", (("dpo-worker-0.dpo-worker.ml.svc", 8),)),
        ("dpo-worker-0.dpo-worker.ml.svc:8\n", (("dpo-worker-0.dpo-worker.ml.svc", 8),)),
        ("# a\n\n;x\n", ()),
    ],
)
def test_mpis_hostfile(text: str, hosts: tuple[tuple[str, int | None], ...]) -> None:
    assert mpi_hosts(text) == hosts


NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "NNODES", "NODE_RANK", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_NNODES",
    "SLURM_NODEID", "SLURM_TASKS_PER_NODE", "JOB_COMPLETION_INDEX", "HOSTNAME", "PET_NNODES", "PET_NODE_RANK",
    "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "VC_TASK_INDEX", "VC_WORKER_HOSTS", "VC_MASTER_HOSTS", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_orte_num_nodes", "PMI_RANK",
    "PMI_SIZE", "MPI_LOCALNRANKS", "LSB_HOSTS", "LSB_MCPU_HOSTS", "PBS_NODEFILE", "REPLICATED_JOB_REPLICAS", "JOBSET_NAME",
    "KUBERNETES_SERVICE_HOST",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["0", "1", "2", "3", "8", "a", "a,b", "n[1-3]", "n[0-99999999]", "x-0.x", "x-1", "x-node-0-0.x", "x-node-0-1", "none",
         "x-master-0", "x-worker-0:5", "2(x3),1", "99999999999", "[::1]", "\u0663", "-1", "1:4", "999999999"]
    ),
    st.text(max_size=12),
)  # fmt: skip
WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["torchrun", "swift", "deepspeed", "mpirun", "srun", "--nnodes", "--nnodes=2", "--hostfile", "/h", "-np", "4", "-H",
             "--include", "a:x@", "--num_nodes", "--world_info=e30=", "--world_info=W10=", "env", "--rdzv_backend", "c10d"]
        ),
        st.text(max_size=8),
    ),
    max_size=8,
)  # fmt: skip


@given(
    WORDS,
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=14),
    st.one_of(st.just("auto"), VALUES),
    st.text(max_size=40),
)
def test_no_environment_stops_it_and_hosts_are_as_many_as_nodes(
    words: list[str], env: dict[str, str], setting: str, file: str
) -> None:
    for found in (nodes_of(words, env, setting, read_text=lambda path: file), nodes_of_rank(env)):
        if found is None:
            continue
        assert found.count >= 1
        assert len(found.hosts) in (0, found.count)
        assert len(found.hosts) <= 65536
        assert found.node_rank is None or found.node_rank >= 0
        assert len(found.hub_ports) in (0, found.count)
