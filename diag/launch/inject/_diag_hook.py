"""What a rank and the processes it starts do for diag: let it read their stacks, say which rank of which
process group they are, and show the Flight Recorder.

Imported by our `sitecustomize` in processes with a rank, and in others once they import torch.distributed, in
the job's interpreter (3.8 to 3.14), which may have no diag installed: standard library only, and of that what
Python has loaded anyway. Nothing here prints or raises into the job. What worked is in
DIAG_RUN_DIR/hook.<pid>.json; forked children that join no process group write nothing and share their
parent's stack file.
"""

# pathlib is not loaded at this point of a start:
# ruff: noqa: PTH102, PTH105

import _signal
import _thread
import atexit
import faulthandler
import os
import sys

# Ours: no number is reserved. SIGRTMIN+16 with glibc; systemd, Slurm, the JVM and torch use others.
_DEFAULT_SIGNAL = 50
# A job that closes all its files and opens others gets the lowest numbers back: far up, ours is not soon
# taken by one of them, into which faulthandler would then write. Below the usual soft limit of 1024.
_STACKS_FD = 1000
_PR_SET_PTRACER = 0x59616D61
_SUN_PATH = 107  # bytes of a UNIX socket's path, less the final zero; linux/un.h
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_TORCH = "torch.distributed.distributed_c10d"
_RPC = "torch.distributed.rpc"

# What a process may have set in its own environment, which /proc does not show.
_SET_INSIDE = "LOCAL_RANK LOCAL_WORLD_SIZE RAY_LOCAL_RANK RAY_LOCAL_WORLD_SIZE CUDA_VISIBLE_DEVICES MASTER_ADDR MASTER_PORT"

_run_dir = ""
_pid = 0  # of the process that ran start() or watch(); a forked child has another
_said = {}  # hook.<pid>.json; empty in a process that is no rank
_notes = []
_answering = _thread.allocate_lock()  # while Python answers a question of the worker server


def start(run_dir, rank):
    """In a process that its environment calls a rank."""
    _enter(run_dir)
    _begin(rank, (_register_stacks, _allow_ptrace, _watch_torch))
    _say()


def watch(run_dir):
    """In any other, which may become one: nothing is done before it has a process group."""
    _enter(run_dir)
    _watch_torch()


def _enter(run_dir):
    global _run_dir, _pid
    _run_dir, _pid = run_dir, os.getpid()


def _begin(rank, steps):
    _said.update(version=1, pid=_pid, rank=rank, python="{}.{}.{}".format(*sys.version_info))
    for step in steps:
        try:
            step()
        except Exception as error:
            _notes.append(f"{step.__name__.strip('_')}: {error}")
    atexit.register(_leave)


# --- stacks by signal


def _stacks_path():
    return f"{_run_dir}/stacks/{_pid}.txt"


def _register_stacks():
    number = int(os.environ.get("DIAG_STACK_SIGNAL") or _DEFAULT_SIGNAL)
    if _signal.getsignal(number) != _signal.SIG_DFL:
        raise OSError(f"signal {number} has another use")
    try:
        os.mkdir(_run_dir + "/stacks", 0o700)
    except FileExistsError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = _lift(os.open(_stacks_path(), flags, 0o600))
    # Handler and file live on across fork, so a DataLoader worker answers into its rank's file and costs
    # nothing. A file for each would outlive its worker: those end by os._exit or a signal, thousands in a
    # long run.
    faulthandler.register(number, file=fd, all_threads=True, chain=False)
    _said.update(signal=number, stacks=f"stacks/{_pid}.txt", stacks_fd=fd)


def _lift(fd):
    for number in range(_STACKS_FD, _STACKS_FD - 10, -1):
        try:
            os.fstat(number)  # a parent may have passed on a file of that number
        except OSError:
            try:
                os.dup2(fd, number, False)
            except OSError:  # beyond the soft limit
                return fd
            os.close(fd)
            return number
    return fd


# --- ptrace under Yama


def _allow_ptrace():
    try:
        fd = os.open(_YAMA, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # no Yama, nothing to allow
    scope = int(os.read(fd, 16))
    os.close(fd)
    _said["ptrace_scope"] = scope
    tracer = int(os.environ.get("DIAG_PTRACER_PID") or 0)
    if scope != 1 or not tracer:
        return
    prctl = _prctl()
    if prctl(_PR_SET_PTRACER, tracer) != 0:
        raise OSError(f"prctl(PR_SET_PTRACER, {tracer}) was refused")
    _said["ptracer"] = tracer
    # Yama keeps it for a process, not for its children; about 1 us a fork.
    os.register_at_fork(after_in_child=lambda: prctl(_PR_SET_PTRACER, tracer))


def _prctl():
    # The extension module itself: 0.8 ms, where the package `ctypes` around it takes 3 ms more (measured, 3.8
    # to 3.13).
    import _ctypes

    address = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")
    return lambda option, value: _ctypes.call_function(address, (option, value, 0, 0, 0))


# --- torch's process group


def _watch_torch():
    _follow_module(_TORCH, _wrap_init)


def _follow_module(name, wrap):
    if name in sys.modules:  # a .pth file was quicker
        wrap(sys.modules[name])
    else:
        sys.meta_path.insert(0, _TorchFinder(name, wrap))


class _TorchFinder:
    """Finds nothing itself. Puts our call, `wrap`, after the execution of one module, then takes itself away.

    A probe (importlib.util.find_spec) asks for the module and never executes it, so finding alone ends
    nothing.
    """

    def __init__(self, name, wrap):
        self.name = name
        self._wrap = wrap
        self._asking = set()

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        me = _thread.get_ident()
        if me in self._asking:  # a finder of the same kind asks us while we ask it
            return None
        self._asking.add(me)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None) if finder is not self else None
                spec = find(fullname, path, target) if find else None
                if spec is not None:
                    self._follow(spec.loader)
                    return spec
        finally:
            self._asking.discard(me)
        return None

    def _follow(self, loader):
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module):
            execute(module)
            try:
                sys.meta_path.remove(self)
                vars(loader).pop("exec_module", None)
                self._wrap(module)
            except Exception as error:
                _note(f"torch: {error}")

        try:
            loader.exec_module = exec_module
        except Exception as error:
            _note(f"torch: its loader takes no hook: {error}")


def _wrap_init(module):
    """Says which rank this is, and opens the server, when init_process_group has returned, not at `import torch`.

    From then on the rank has threads of gloo or NCCL anyway. Before, ours would be its first, and a fork then warns
    (3.12 and later) and could deadlock; launchers and helpers that only import torch stay as they are.
    """
    import functools

    init = module.init_process_group
    if _said:
        _switch_recorder_on()
    _follow_module(_RPC, _wrap_rpc)  # torch imports it a little later

    @functools.wraps(init)
    def init_process_group(*args, **kwargs):
        _switch_recorder_on()
        sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _TorchFinder)]
        result = init(*args, **kwargs)
        try:
            _join(module)
        except Exception as error:
            _note(f"group: {error}")
        return result

    module.init_process_group = init_process_group


def _wrap_rpc(module):
    """The same of a job of RPC alone, whose workers meet at a store and have no process group that torch tells of."""
    import functools

    init = getattr(module, "init_rpc", None)  # torch may have been built without it
    if init is None:
        return

    @functools.wraps(init)
    def init_rpc(*args, **kwargs):
        result = init(*args, **kwargs)
        try:
            if not sys.modules[_TORCH].is_initialized():
                options = kwargs.get("rpc_backend_options") or (args[4:] or (None,))[0]
                _say_group(_worker(module, getattr(options, "init_method", "env://")))
                _say()
        except Exception as error:
            _note(f"rpc: {error}")
        return result

    module.init_rpc = init_rpc


def _worker(module, method):
    where = method.partition("?")[0]
    if where == "env://":
        where = "tcp://{}:{}".format(os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    return _report(module.get_worker_info().id, len(module.api._ALL_WORKER_NAMES), where)


def _join(module):
    """This process has a process group: whatever its environment says, it is that rank of it."""
    try:
        group = _report(module.get_rank(), module.get_world_size(), _meeting_point(module))
    except Exception as error:
        if os.getpid() != _pid or not _said:
            return
        _notes.append(f"group: {error}")
    else:
        _say_group(group)
    if "worker_server" not in _said and os.environ.get("DIAG_FLIGHT_RECORDER") != "0":
        _said["worker_server"] = None
        try:
            _open_worker_server()
        except Exception as error:
            _notes.append(f"worker server: {error}")
    _say()


def _say_group(group):
    _become_rank(group["rank"])
    _said["group"] = dict(group, number=_said.get("group", {}).get("number", 0) + 1)


def _become_rank(rank):
    steps = () if "signal" in _said else (_register_stacks, _allow_ptrace)  # a fork has its parent's
    if os.getpid() != _pid:
        _enter(_run_dir)
        _said.clear()
        del _notes[:]
    if not _said:
        _begin(rank, steps)


def _report(rank, world, store):
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    thread = _thread.get_native_id()
    return {
        "rank": int(rank),
        "world": int(world),
        "store": store,
        "ticks": ticks,  # by which a later process of this pid is another
        "thread": [] if thread == os.getpid() else [thread, _thread.get_ident()],
        "env": {name: os.environ[name] for name in _SET_INSIDE.split() if name in os.environ},
    }


def _meeting_point(module):
    """Where the group's store is, which no two jobs share; "" where it does not say."""
    try:
        store = module._get_default_store()
        for _ in range(8):  # a TCPStore in some PrefixStores
            if hasattr(store, "underlying_store"):
                store = store.underlying_store
        if hasattr(store, "port"):
            return f"tcp://{store.host}:{store.port}"
        return f"file://{store.path}"
    except Exception:
        return ""


# --- Flight Recorder: torch's own worker server on a UNIX socket


def _switch_recorder_on():
    """Up to torch 2.10 the recorder keeps nothing by default, from 2.11 on 2,000 calls: the same here, before
    the first group."""
    names = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
    version = getattr(sys.modules.get("torch"), "__version__", "")
    parts = str(version).split(".")[:2]
    if os.environ.get("DIAG_FLIGHT_RECORDER") == "0" or any(name in os.environ for name in names):
        return
    if all(part.isdigit() for part in parts) and (2, 4) <= tuple(map(int, parts)) < (2, 11):
        os.environ[names[0]] = "2000"


def _open_worker_server():
    # Appeared in torch 2.4; before that the ImportError becomes the note.
    import ctypes

    from torch._C._distributed_c10d import _WorkerServer

    name = f"w.{_pid}.sock"
    path = _run_dir + "/" + name
    if len(os.fsencode(path)) > _SUN_PATH:
        raise OSError(f"the run directory's path is too long for a socket: {path}")
    server = _without_its_log_line(lambda: _WorkerServer(path))
    # Never destroyed: its destructor joins the server's threads. With one of them waiting for the GIL that
    # would hang the job's exit, and in a forked child those threads do not exist.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    _said["worker_server"] = name
    _tell_lines_of_calls(ctypes.pythonapi.Py_IncRef, ctypes.py_object)


def _tell_lines_of_calls(keep, of):
    """The recorder has the lines that made each call, but none of torch's own handlers gives them of gloo, and NCCL's imports
    the compiler for them. These take the GIL, 30 ms for 2,000 calls, so they are asked only where nothing moves."""
    import torch
    from torch._C import _distributed_c10d as c10d

    if not hasattr(c10d, "_register_handler"):  # before torch 2.10
        return
    for name in ("nccl_trace", "fr_trace"):
        dump = getattr(c10d, "_dump_" + name, None)
        if dump is not None:
            handler = _handler(torch, dump)
            keep(of(handler))  # its last owner is a static of C++, which lets go of it after Python has ended
            c10d._register_handler("diag_" + name, handler)


def _handler(torch, dump):
    def handler(request, response):
        with _answering:
            instead = _NotImported(_thread.get_ident())
            if "torch._inductor" not in sys.modules:
                vars(torch).setdefault("_inductor", instead)
            try:
                response.set_content(dump(True, True, False), "application/octet-stream")
                response.set_status(200)
            except Exception as error:
                response.set_content(repr(error), "text/plain")
                response.set_status(500)
            finally:
                if vars(torch).get("_inductor") is instead:
                    del torch._inductor

    return handler


class _NotImported:
    """Stands for torch._inductor, which torch asks for frames of compiled code, and would import for that where the job has
    not: 2.5 s of CPU and 75 MiB (2.13). Whoever else asks gets the module."""

    def __init__(self, thread):
        self._thread = thread

    def __getattr__(self, name):
        if _thread.get_ident() == self._thread:
            raise AttributeError(name)
        import importlib

        return getattr(importlib.import_module("torch._inductor"), name)


def _without_its_log_line(build):
    """The server announces itself on stderr (torch 2.13, `[c10d] Server listening to UNIX ...`); the job's
    output is not ours."""
    if _thread._count() != 0:  # another Python thread could start a process just now, with stderr turned away
        return build()
    try:
        kept, box = os.dup(2), os.memfd_create("diag")
    except (AttributeError, OSError):
        return build()
    os.dup2(box, 2)
    try:
        return build()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        lines = os.pread(box, 1 << 16, 0).splitlines(True)
        os.close(box)
        rest = b"".join(line for line in lines if b"WorkerServer.cpp" not in line)
        if rest:
            os.write(2, rest)


# --- what worked


def _note(text):
    _notes.append(text)
    if os.getpid() == _pid and _said:
        _say()


def _say():
    """Whole or not at all; a full or read-only disk is no news to the job."""
    path = f"{_run_dir}/hook.{_pid}.json"
    new = path + ".new"
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        text = _json(dict(_said, notes=_notes)).encode()
        whole = os.write(fd, text) == len(text)
    except OSError:
        whole = False
    finally:
        os.close(fd)
    try:
        if whole:
            os.replace(new, path)
        else:
            os.unlink(new)
    except OSError:
        pass


def _json(value):
    # `import json` takes 3 ms at the start of every process.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(key)}: {_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_json(item) for item in value) + "]"
    if isinstance(value, str):
        plain = (
            c if " " <= c <= "~" and c not in '"\\' else f"\\u{min(ord(c), 0xFFFF):04x}" for c in value[:500]
        )
        return '"' + "".join(plain) + '"'
    return "null" if value is None else str(value)


def _leave():
    """First registered, so last to run at exit. Killed processes leave their two small files to the run's
    clean-up."""
    if os.getpid() != _pid:
        return
    # Kept: whoever would answer from here on waits for it, and never again for the GIL of an interpreter that is gone.
    _answering.acquire(True, 2.0)
    number = _said.get("signal")
    if number:
        # Python will take the handler away soon, and then the signal kills. From here on it is ignored
        # instead.
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, [number])
            faulthandler.unregister(number)
            _signal.signal(number, _signal.SIG_IGN)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
        except (OSError, ValueError):
            pass
    for name in (f"hook.{_pid}.json", _said.get("stacks"), _said.get("worker_server")):
        try:
            if name:
                os.unlink(_run_dir + "/" + name)
        except OSError:
            pass
