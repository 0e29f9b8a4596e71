"""What NCCL logs of its surroundings: version, variables, interfaces, RDMA ports, plugins, the network it
chose."""

from __future__ import annotations

import re

from diag.model import observations as facts
from diag.sources.logs.nccl_log.head import reads

# src/init.cc, 2.18-2.31; NCCL 2.28.9, captured on 2 x H200, 2026-11-20:
#   NCCL version 2.28.9+cuda13.0
_VERSION = re.compile(
    r"NCCL version (?P<version>\d{1,4}\.\d{1,4}\.\d{1,6})[^\s+]{0,40}(?:\+cuda(?P<cuda>\d{1,3}\.\d{1,3}))?"
)


# src/ras/ras.cc, 2.24-2.31; NCCL 2.28.9, captured on 2 x H200, 2026-11-20:
#   RAS client listening socket at 127.0.0.1<28028>
_RAS = re.compile(r"RAS client listening socket at (?P<address>\S{1,80}<\d{1,5}>)$")


# src/misc/param.cc and its callers, 2.18-2.31. Integers end with a dot, text does not:
#   NCCL_IB_DISABLE set by environment to 1.
#   NCCL_SOCKET_IFNAME set by environment to eth0
#   NCCL_IB_HCA set to mlx5_0,mlx5_1
_VARIABLE = re.compile(r"(\w{4,80}) set (?:by environment to (.*)|to (\S*))")
_INTEGER = re.compile(r"(-?\d{1,20})\.")


def variable(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _VARIABLE.fullmatch(line.text)
    if match is None:
        return None
    value = match[2] if match[2] is not None else match[3]
    integer = _INTEGER.fullmatch(value)
    return facts.NcclEnvironment(line.rank, line, match[1], integer[1] if integer else value)


# src/init.cc, INFO, of the second communicator on; captured with 2.28.9 and 2.31.2 (no earlier one ever
# prints NCCL_NET):
#   Comm config netName reset to NCCL_NET=Socket
_NET_NAME = re.compile(r"Comm config netName reset to (?P<name>NCCL_NET)=(?P<value>\S{1,80})$")


# src/bootstrap.cc. With NCCL_OOB_NET_ENABLE (2.23-2.31) it names a device and its port instead:
#   2.18-2.23  Bootstrap : Using eth0:10.0.0.1<0>
#   2.24-2.31  Bootstrap: Using eth0:192.0.2.2<0>         (captured with 2.28.9)
#   2.24-2.31  Bootstrap: Using mlx5_0:1
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[0\])?([^\s:]{1,64}):(\S{1,120})$")


def _bootstrap(line: facts.NcclLine) -> facts.NcclFact | None:
    if match := _BOOTSTRAP.match(line.text):
        return facts.NcclBootstrap(
            line.rank, line, match[1], _address(match[2]) if match[2].endswith(">") else ""
        )
    # src/bootstrap.cc, WARN, 2.18-2.31; captured with 2.28.9 and NCCL_SOCKET_IFNAME=ib0:
    #   Bootstrap : no socket interface found
    if line.text.endswith("no socket interface found"):
        return facts.NcclInterfaceMissing(line.rank, line, "bootstrap")
    return None


# src/misc/socket.cc, WARN, 2.18-2.26 (NCCL_COMM_ID names an address of another subnet):
#   Net : No interface found in the same subnet as remote address 10.0.0.1<5000>
_NO_INTERFACE = re.compile(
    r"Net : No interface found in the same subnet as remote address (?:.* )?(?P<wanted>[^ ]*)$"
)
net_interface = reads(facts.NcclInterfaceMissing, _NO_INTERFACE, use="bootstrap")


# src/bootstrap.cc, NCCL_OOB_NET_IFNAME, WARN:
#   2.23       no device found matching NCCL_OOB_NET_IFNAME=mlx5_9, ignoring
#   2.24-2.31  no device found matching mlx5_9, verify NCCL_OOB_NET_IFNAME   ("matching exactly mlx5_9" for =mlx5_9)
#   2.24-2.31  no device found after excluding mlx5, verify NCCL_OOB_NET_IFNAME
_NO_OOB = re.compile(
    r"no device found (matching|after excluding) (?:exactly )?(?:NCCL_OOB_NET_IFNAME=)?(\S{1,200}), (?:verify|ignoring)"
)


def _no_oob(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _NO_OOB.match(line.text)
    if match is None:
        return None
    return facts.NcclInterfaceMissing(
        line.rank, line, "oob", ("" if match[1] == "matching" else "^") + match[2]
    )


# src/transport/net_socket.cc, 2.18-2.31:
#   NET/Socket : Using [0]eth0:192.0.2.2<0>               (captured with 2.28.9)
#   NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:fe80::1%eth1<0>
#   NET/Socket : no interface found                       (WARN)
_INTERFACE = re.compile(r"\[\d{1,3}\]([^\s:\[\]]{1,64}):(\S{1,120}<\d{1,5}>)")


def _sockets(line: facts.NcclLine) -> facts.NcclFact | None:
    message = line.text.partition(":")[2].strip()
    if message.startswith("Using ["):
        found = tuple((name, _address(address)) for name, address in _INTERFACE.findall(message))
        return facts.NcclSockets(line.rank, line, found) if found else None
    if message == "no interface found":
        return facts.NcclInterfaceMissing(line.rank, line, "socket")
    return None


def _address(text: str) -> str:
    """Of "10.0.0.1<0>": an interface has no port."""
    return text.rpartition("<")[0] or text


# src/transport/net_ib.cc (net_ib/init.cc from 2.29 on). One device as
#   2.18-2.31  [0]mlx5_0:1/IB  [1]mlx5_bond_0:1/RoCE
#   2.20-2.23  [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}     merged
#   2.30-2.31  [0]mlx5_0:1:2/IB  [0]mlx5_0:1:2:3/IB  [0]mlx5_0:1::3/IB     :rail, :rail:plane, ::plane
#   HPC-X      [0]mlx5_0:1/IB/SHARP                       (its own copy, ib_plugin.c / p2p_plugin.c)
_DEVICE = re.compile(r"\[\d{1,3}\] ?([^\s:\[\]{}=]{1,64}):(\d{1,3})(?::-?\d{0,6}){0,2}/(IB|RoCE)(?![A-Za-z])")
#   2.18-2.31  NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
#   2.24-2.31  NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>  (captured with 2.28.9: no device at all)
_OOB = re.compile(r"; OOB ([^\s:]{0,64}):(\S{0,120})$")


def ib_setup(line: facts.NcclLine, message: str) -> facts.NcclFact | None:
    """`message` is the text less "NET/IB :"."""
    if message.startswith("Using"):
        devices = tuple(
            facts.NcclIbDevice(name, int(port), link) for name, port, link in _DEVICE.findall(message)
        )
        oob = _OOB.search(message)
        if oob is None:
            return facts.NcclIbDevices(line.rank, line, devices, cut=True)
        return facts.NcclIbDevices(line.rank, line, devices, oob[1], _address(oob[2]))
    # INFO, 2.18-2.31; twice where an HPC-X plugin looks first. Captured with 2.28.9:
    #   NET/IB : No device found.
    if message == "No device found.":
        return facts.NcclIbDevices(line.rank, line, ())
    # WARN, 2.18-2.31; RDMA is then dropped even if it works:
    #   NET/IB : No IP interface found.
    if message.startswith("No IP interface found"):
        return facts.NcclInterfaceMissing(line.rank, line, "oob")
    # INFO, 2.27-2.31; features only:
    #   NET/IB : Failed to open mlx5dv symbols. Advance features like CX-8 Direct-NIC will be disabled.
    if message.startswith("Failed to open mlx5dv symbols"):
        return facts.NcclLibraryMissing(line.rank, line, "mlx5dv")
    return None


# src/init.cc (src/plugin/net.cc from 2.27 on), 2.18-2.31; captured with 2.28.9:
#   Using network Socket
# Others' nets: IBext_v8 (HPC-X), AWS Libfabric, Libfabric, OFI, UCX, FasTrak
_USING = re.compile(r"Using network (?P<net>\S(?:[\w. /+-]{0,60}\S)?)$")


# src/misc/ibvsymbols.cc, mlx5dvsymbols.cc, INFO:
#   2.18-2.29  Failed to open libibverbs.so[.1]
#   2.27-2.29  Failed to open libmlx5.so[.1]
#   2.30-2.31  Count not open libibverbs.so   and then   Count not open libibverbs.so.1     (sic; the first alone is normal:
#              without the -dev package there is only .so.1)
#   2.28-2.31  Failed to load libibverbs: ...              (GDAKI)
_LIBRARY = re.compile(
    r"(?:Failed to open|Count not open) (?:\S{0,200}/)?(lib(?:ibverbs|mlx5))\.so(?:\[\.1\]|\.\d{1,2})(?!\S)"
)
# src/plugin/net.cc:
#   2.28-2.31  Failed to initialize NET plugin IB         (INFO; captured with 2.28.9)
#   2.27-2.31  Failed to initialize any NET plugin        (WARN)
_NET_FAILED = re.compile(r"Failed to initialize (?:NET plugin (\S(?:.{0,60}\S)?)|any NET plugin)$")


def _failed(line: facts.NcclLine) -> facts.NcclFact | None:
    if match := _NET_FAILED.match(line.text):
        return facts.NcclNetFailed(line.rank, line, match[1] or "")
    if line.text.startswith("Failed to load libibverbs:"):
        return facts.NcclLibraryMissing(line.rank, line, "libibverbs")
    match = _LIBRARY.match(line.text)
    library = match and ("mlx5dv" if match[1] == "libmlx5" else match[1])
    return facts.NcclLibraryMissing(line.rank, line, library) if library else None


# src/net.cc, WARN, 2.18-2.26:
#   Error: network IB not found.
_NET_MISSING = re.compile(r"Error: network (?P<net>\S(?:.{0,60}\S)?) not found\.?$")


# src/net.cc (2.18-2.21), src/plugin/plugin_open.cc (2.22-2.31), INFO. Not there, which is normal:
#   2.18       NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such
#              file or directory   and then   NET/Plugin : No plugin found, using internal implementation
#   2.19-2.20  NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found
#              (libnccl-net.so), using internal implementation
#   2.21       NET/Plugin: No plugin found (libnccl-net.so)   and then
#              NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open ... : when loading libnccl-net.so
#   2.22-2.25  NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
#   2.26       NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
#   2.27-2.31  NET/Plugin: Could not find: libnccl-net.so (captured with 2.28.9)
#              (with NCCL_NET_PLUGIN=ofi: Could not find: ofi libnccl-net-ofi.so)
_NO_PLUGIN = re.compile(r"(?:dlerror=(?P<error>.{0,400}) )?No plugin found(?: \((?P<name>[^()]{1,200})\))?")
_LOAD = re.compile(
    r"(?:Most recent p|P)lugin load (?:\((?P<name>[^()]{1,200})\) )?returned -?\d{1,5} : (?P<error>.{0,400}?)"
    r"(?: ?:? when loading (?P<when>\S{1,200})|\. All attempts to load '(?P<all>[^']{1,200})' also failed\.?|\.)?$"
)
# There, and of no use (what dlerror says; from 2.22 on only where it is not the plugin's own file that is
# missing):
#   2.22-2.27  NET/Plugin: libnccl-net-ofi.so: undefined symbol: fi_dupinfo@FABRIC_1.8
#   2.28-2.31  NET/Plugin: libnccl-net-ofi.so: libfabric.so.1: cannot open shared object file: No such file or directory
#   2.19-2.25  NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower are not supported.
#   2.18       NET/Plugin: Failed to find ncclNetPlugin symbol (v4 or v5).
_DLERROR = re.compile(r"([^\s:]{1,200}\.so(?:\.[\w.]{1,20})?): \S")
_NO_FILE = re.compile(r"([^\s:]{1,200}): cannot open shared object file: No such file or directory")
# Used:
#   2.18-2.31  NET/Plugin: Loaded net plugin IBext_v8 (v8)
_LOADED = re.compile(r"Loaded net plugin (\S(?:.{0,80}\S)?) \(v\d{1,3}\)$")


def _plugin(line: facts.NcclLine) -> facts.NcclFact | None:
    message = line.text.partition(":")[2].strip()
    if match := _LOADED.match(message):
        return facts.NcclPlugin(line.rank, line, match[1], "loaded")
    if message.startswith("Could not find:"):
        names = message.partition(":")[2].partition(". Using internal ")[0]
        return facts.NcclPlugin(line.rank, line, names.strip()[:400], "missing")
    if message.startswith("Failed to find ncclNetPlugin symbol"):
        return facts.NcclPlugin(line.rank, line, "", "failed")
    if match := _NO_PLUGIN.match(message):
        name, error = match["name"] or "", match["error"]
        return facts.NcclPlugin(line.rank, line, name, _load_status(name, error) if error else "missing")
    if match := _LOAD.match(message):
        name = match["name"] or match["when"] or match["all"] or match["error"].partition(":")[0]
        return facts.NcclPlugin(line.rank, line, name, _load_status(name, match["error"]))
    if message.startswith("Plugin name set by env to "):
        return _plugin_name(line)
    match = _DLERROR.match(message)
    return facts.NcclPlugin(line.rank, line, match[1], "failed") if match else None


def _load_status(names: str, error: str) -> str:
    """Missing when the plugin's own file is not there; another's that it needs makes it one that failed."""
    match = _NO_FILE.search(error)
    return "missing" if match and match[1] in names.split() else "failed"


# 2.18-2.20  Plugin name set by env to libnccl-net-ofi.so
# 2.21-2.27  NET/Plugin: Plugin name set by env to libnccl-net-ofi.so
# 2.28-2.31  NCCL_NET_PLUGIN set by environment to ofi
# HPC-X      Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
def _plugin_name(line: facts.NcclLine) -> facts.NcclFact | None:
    before, _, name = line.text.partition("set by env to ")
    if name:
        return facts.NcclEnvironment(line.rank, line, "NCCL_NET_PLUGIN", name)
    _, found, name = before.partition("Plugin Path : ")
    return facts.NcclPlugin(line.rank, line, name, "loaded") if found and name else None


# HPC-X (nccl-rdma-sharp-plugins, src/p2p_plugin.c), INFO:
#   P2P plugin IBext          P2P plugin IBext_v8          P2P plugin v10 IBext_v10
_P2P_PLUGIN = re.compile(r"P2P plugin (?:v\d{1,3} )?(?P<name>\S{1,60})$")


# src/plugin/net.cc, INFO:
#   2.27       Successfully loaded external plugin libnccl-net.so
#   2.28-2.31  Successfully loaded external network plugin libnccl-net.so
#   2.28-2.31  External network plugin libnccl-net.so is unsupported
_EXTERNAL = re.compile(
    r"Successfully loaded external (?:network )?plugin (?P<loaded>\S{1,200})$"
    r"|External network plugin (?P<failed>\S{1,200}) is unsupported"
)


def _external(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _EXTERNAL.match(line.text)
    return (
        facts.NcclPlugin(line.rank, line, match[match.lastgroup], match.lastgroup)
        if match and match.lastgroup
        else None
    )


# aws-ofi-nccl (src/nccl_ofi_net.c, nccl_ofi_api.c), 1.4-1.16:
#   NET/OFI Selected Provider is efa (found 16 nics)
#   NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)
#   NET/OFI OFI fi_getinfo() call failed: No data available        (WARN)
#   NET/OFI Could not find any optimal provider                    (WARN, 2019)
_OFI_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\S{1,60}?),? ")
_OFI_FAILED = re.compile(
    r"NET/OFI (?:OFI fi_getinfo\(\) call failed|Could not find any optimal provider|"
    r"Failed to initialize \S{1,40} protocol|Unable to find a protocol that worked)"
)


def _ofi(line: facts.NcclLine) -> facts.NcclFact | None:
    if match := _OFI_PROVIDER.match(line.text):
        return facts.NcclPlugin(line.rank, line, f"OFI ({match[1]})", "loaded")
    return facts.NcclPlugin(line.rank, line, "OFI", "failed") if _OFI_FAILED.match(line.text) else None


# src/graph/paths.cc (subsystems GRAPH and NET; TRACE only from 2.29 on), src/transport/net.cc:
#   2.18-2.20  GPU Direct RDMA Disabled for GPU 16000 / HCA 0 (distance 8 > 5)
#   2.21-2.23  GPU Direct RDMA Enabled for GPU 16000 / HCA 8 (distance 4 <= 5), read 1
#   2.24-2.28  GPU Direct RDMA Enabled for GPU 0 / HCA 8 (distance 4 <= 5), read 1 mode Default
#   2.18-2.31  NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
_GPU_DIRECT = re.compile(
    r"GPU Direct RDMA (Enabled|Disabled) for (?:.{0,80}?\(([^()]{1,80})\)|HCA \d{1,4} '([^']{0,80})')?"
)
# src/init.cc, 2.24-2.31; captured with 2.28.9, also with GDR 1, on one node and with sockets, where it means
# nothing:
#   Connected all rings, use ring PXN 0 GDR 0
_RINGS = re.compile(r"Connected all rings, (use ring PXN \d GDR (\d))$")


def gpu_direct(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _GPU_DIRECT.search(line.text)
    if match is None:
        return None
    why = match[2] or (f"HCA {match[3]}" if match[3] else "")
    return facts.NcclGpuDirect(line.rank, line, match[1] == "Enabled", why)


def _rings(line: facts.NcclLine) -> facts.NcclFact | None:
    match = _RINGS.match(line.text)
    return facts.NcclGpuDirect(line.rank, line, match[2] != "0", match[1]) if match else None


# By the first word of the text.
READERS = {
    "NCCL": reads(facts.NcclVersion, _VERSION),
    "RAS": reads(facts.NcclRasListening, _RAS),
    "Comm": reads(facts.NcclEnvironment, _NET_NAME),
    "Bootstrap": _bootstrap,
    "Bootstrap:": _bootstrap,
    "no": _no_oob,
    "NET/Socket": _sockets,
    "NET/Socket:": _sockets,
    "NET/Plugin": _plugin,
    "NET/Plugin:": _plugin,
    "NET/OFI": _ofi,
    "Plugin": _plugin_name,
    "P2P": reads(facts.NcclPlugin, _P2P_PLUGIN, status="loaded"),
    "Successfully": _external,
    "External": _external,
    "Using": reads(facts.NcclNetChosen, _USING),
    "Failed": _failed,
    "Count": _failed,
    "Error:": reads(facts.NcclNetFailed, _NET_MISSING),
    "GPU": gpu_direct,
    "Connected": _rings,
}
