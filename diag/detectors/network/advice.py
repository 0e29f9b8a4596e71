"""What to change so that NCCL uses RDMA, by the cause and by where the rank runs."""

from __future__ import annotations

from collections.abc import Mapping

from diag.state.view import JobView

# By cause: what to do, with {image}, {devices}, {memlock} and {variable} filled in for the place where the
# rank runs.
_ADVICE = {
    "libibverbs_missing": "Install libibverbs and the drivers of the card {image}: `apt-get install libibverbs1 "
    "ibverbs-providers` (Debian, Ubuntu), `dnf install libibverbs rdma-core`; in conda `conda install -c conda-forge rdma-core`.",
    "device_nodes_missing": "Give the rank the devices: {devices}.",
    "provider_missing": "Install the card's driver of libibverbs {image}: `apt-get install ibverbs-providers` (it holds mlx5, "
    "mlx4, efa, rxe ...), of the same rdma-core as libibverbs itself.",
    "device_open_failed": "Let the rank open /dev/infiniband/uverbs*: {devices}; check the nodes' owner and mode (0666 is "
    "usual), and that rdma-core {image} is not older than the host's driver.",
    "ib_disabled": "Remove NCCL_IB_DISABLE {variable}: it was most likely copied from a guide for a machine without InfiniBand.",
    "net_forced": "Remove NCCL_NET=Socket {variable}; NCCL_NET=IB instead makes NCCL fail loudly where RDMA cannot be used.",
    "hca_filter": "Correct NCCL_IB_HCA {variable}: names are prefixes, `=mlx5_0` means exactly that one, `^=mlx5_1` all "
    "but that one; `ls /sys/class/infiniband` shows what this node has. Unset, NCCL takes all active ports.",
    "port_down": "Bring the port up: `ibstat` or `rdma link` on the node shows it; DOWN is a cable or switch port, INIT on "
    "InfiniBand a missing subnet manager (opensm, UFM), a RoCE port follows its Ethernet interface (`ip link`).",
    "no_oob_interface": "NCCL needs an IP interface beside RDMA: set NCCL_SOCKET_IFNAME {variable} to one that all nodes reach "
    "(`ip -br addr`), or correct NCCL_OOB_NET_IFNAME.",
    "efa_plugin_missing": "Put aws-ofi-nccl and libfabric {image} (AWS's deep learning images have them) and their folder on "
    "LD_LIBRARY_PATH; `fi_info -p efa` where the rank runs must list the device (Kubernetes: resource vpc.amazonaws.com/efa). "
    "NCCL then says `Using network AWS Libfabric`.",
    "plugin_failed": "Make the plugin match the image ({image}: same NCCL major, its libraries on LD_LIBRARY_PATH), or turn it "
    "off: NCCL_NET_PLUGIN=none (NCCL 2.28 and later) uses NCCL's own InfiniBand code.",
    "no_rdma": "Nothing to mend if the nodes have no InfiniBand, RoCE or EFA. If they have: {devices}.",
    "no_device": "See whether the node has RDMA (`ls /sys/class/infiniband /dev/infiniband` where the rank runs; `diag doctor` "
    "does it all): if so, {devices}.",
    "not_expected": "See NCCL's lines in the evidence for why the network that you expect was not used: its plugin was not "
    "found, or failed.",
    "unknown": "Run once with NCCL_DEBUG=INFO (`diag run` sets it unless NCCL_DEBUG is set), and `diag doctor` where the rank "
    "runs.",
}
_MEANT = " If sockets are meant here: --expect-net Socket."
_ALWAYS = " NCCL_NET=IB turns such a silent fallback into an error at the start."

_DEVICES = {
    "kubernetes": "request the node's RDMA resource in the container (`resources: {limits: {rdma/<name of your cluster>: 1}}`; "
    "`kubectl "
    "describe node` lists it) and add `securityContext: {capabilities: {add: [IPC_LOCK]}}`; hostNetwork or a secondary interface "
    "(k8s.v1.cni.cncf.io/networks) for RoCE",
    "docker": "`docker run --device=/dev/infiniband --ulimit memlock=-1 --cap-add=IPC_LOCK --network=host ...`",
    "podman": "`podman run --device=/dev/infiniband --ulimit memlock=-1 --network=host ...`",
    "slurm": "ask the cluster's people to let jobs see /dev/infiniband (cgroup ConstrainDevices, or bind it: `apptainer exec "
    "--bind /dev/infiniband`; srun --container-mounts=/dev/infiniband)",
    "": "docker: `--device=/dev/infiniband --ulimit memlock=-1 --network=host`; Kubernetes: the cluster's rdma/... resource in "
    "the container's limits and capability IPC_LOCK; bare: load the card's driver (`modprobe mlx5_ib ib_uverbs`)",
}
_MEMLOCK = {
    "kubernetes": "`securityContext: {capabilities: {add: [IPC_LOCK]}}` in the container",
    "docker": "`docker run --ulimit memlock=-1 --cap-add=IPC_LOCK ...`",
    "podman": "`podman run --ulimit memlock=-1 ...`",
    "slurm": "`ulimit -l unlimited` in the job script, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and "
    "LimitMEMLOCK=infinity for slurmd",
    "": "`ulimit -l unlimited` before the launcher (limits.conf: `* - memlock unlimited`); docker --ulimit memlock=-1; "
    "Kubernetes: capability IPC_LOCK; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
}
_IMAGE = {"kubernetes": "into the image", "docker": "into the image", "podman": "into the image"}
_VARIABLE = {
    "kubernetes": "in the container's env: (or its ConfigMap, entrypoint)",
    "docker": "in `docker run -e`, --env-file or the image's ENV",
    "podman": "in `podman run -e` or the image's ENV",
    "slurm": "in the job script, --export or the module that sets it",
}


def surroundings(job: JobView, rank: int) -> str:
    """Where the rank runs: kubernetes, docker, podman, slurm or "" (bare, or not known)."""
    state = job.ranks.get(rank)
    if state is None:
        return ""
    return (
        state.rdma.container
        if state.rdma is not None and state.rdma.container
        else _from_variables(state.variables)
    )


def _from_variables(variables: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "kubernetes"
    return "slurm" if "SLURM_JOB_ID" in variables else ""


def advice_for(cause: str, job: JobView, rank: int) -> str:
    """The remedy for a cause of docs/reference/network.md, for the place where this rank runs."""
    place = surroundings(job, rank)
    text = (
        _ADVICE[cause]
        .replace("{devices}", _DEVICES[place])
        .replace("{image}", _IMAGE.get(place, "where the rank runs"))
    )
    text = text.replace("{variable}", _VARIABLE.get(place, "where it is set (script, shell, nccl.conf)"))
    text = (
        text if cause in ("no_rdma", "net_forced", "not_expected", "efa_plugin_missing") else text + _ALWAYS
    )
    return text if cause in ("no_rdma", "not_expected") else text + _MEANT


def memlock_advice(place: str) -> str:
    """How to lift the limit of locked memory there."""
    return f"Lift the limit of locked memory: {_MEMLOCK[place]}."
