"""The manual pages of findings that only `diag doctor` has; those of a run stand with their detectors."""

from __future__ import annotations

PAGES: dict[str, str] = {
    "disk-full": """\
Meaning: too little room, or too few files, where CMD writes its checkpoints, or where caches and temporary files go.

Evidence: statvfs of the directory that CMD names (--output_dir, --save) or that ms-swift takes (output, megatron_output), of
TMPDIR, HF_HOME, MODELSCOPE_CACHE, TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR or their defaults; the user's quota where the
kernel tells it; the size of a checkpoint as `diag estimate` computes it from CMD.

What to do: free space, or choose another directory; for inodes delete many small files (`df -i`).

False alarms: a directory that another mount will cover. A quota that only the server knows (NFS, Lustre) is not seen.""",
    "hostname-resolution": """\
Meaning: a name of the rendezvous does not resolve on this node, or resolves to the wrong machine or to loopback.

Evidence: the resolver's answer for the address in CMD's flags and environment, /etc/hosts, this host's own name.

What to do: put the name into DNS or /etc/hosts of every node (docker: --add-host); in Kubernetes use an Indexed Job with a
headless Service, since pods of a plain Job have random names.

False alarms: a name that only exists once the other pod runs: look again then.""",
    "port-in-use": """\
Meaning: another program listens on the port of the rendezvous.

Evidence: a bind that fails with EADDRINUSE, and the owner's pid where /proc shows it; on other nodes, an answer that is not
diag's.

What to do: end a left-over job, or choose another MASTER_PORT.

False alarms: a job that already runs on this port, and is meant to.""",
    "version-mismatch": """\
Meaning: versions of packages that CMD uses do not fit each other, or CMD will import another Megatron than it was written for.

Evidence: the versions in CMD's own Python (its first line, the line "software" says which), held against pairs that were seen to
break and against what the packages themselves require; megatron.core and megatron.training as they would be found.

What to do: the pip or git command beside it; then `diag doctor -- CMD` again. `pip check` in that environment shows all that is
not met. MEGATRON_LM_PATH is read by ms-swift 3.x alone, 4.x takes megatron-core from pip.

False alarms: a requirement that a package declares and does not need; a patched copy.""",
    "missing-module": """\
Meaning: CMD's program, or a module or library that CMD needs, is missing or cannot be imported.

Evidence: PATH, the packages of CMD's own Python, and the error of a real import without GPUs.

What to do: the pip command beside it, or activate the environment that CMD belongs to. megatron.training is in no wheel: it needs
a clone of Megatron-LM. transformer-engine alone is an empty package: transformer-engine[pytorch] has the part for torch.

False alarms: a package that a script of CMD installs first; a node that is not one of the job's.""",
    "extension-abi-mismatch": """\
Meaning: a compiled package was built for another torch, C++ ABI, libc or CPU: it does not load, or crashes when it does.

Evidence: the loader's words of a real import in CMD's own Python: undefined symbol (with its C++ name), a version of GLIBC or
GLIBCXX that is not there, an operator that is not registered, the signal that ended it.

What to do: install the build for this torch, or build it here: `pip install --no-build-isolation --no-cache-dir`. Wheels of
flash-attn have torch and ABI in their names; torch 2.7 and later from PyPI are cxx11abiTRUE. Or do without: pip uninstall it.

False alarms: a crash that only comes without a GPU.""",
    "missing-header": """\
Meaning: CMD compiles code when it starts, and what that needs (compiler, nvcc, headers, CUDA_HOME) is not there.

Evidence: CMD's flags and DeepSpeed's configuration (offload of the optimizer, an optimizer of its own), PATH and CUDA_HOME.

What to do: install the toolkit of torch's own CUDA version and set CUDA_HOME, or use an image -devel; apt-get install
build-essential. cudnn.h, missing when transformer-engine or apex are built, is in the wheel nvidia-cudnn-cu12:
export CPATH=$(python -c 'import nvidia.cudnn as c; print(list(c.__path__)[0])')/include.

False alarms: DeepSpeed's operators that were built when it was installed (DS_BUILD_OPS=1).""",
    "cuda-version-mismatch": """\
Meaning: driver, torch, a package, the toolkit or a second copy of cuDNN are of versions of CUDA that do not fit.

Evidence: what libcuda or NVML say that the driver can run, torch.version.cuda, libraries that an import does not find or finds in
another version, LD_LIBRARY_PATH against the wheels that torch brings, nvcc --version where CMD compiles.

What to do: a build of torch for this driver, or a newer driver; take folders of another CUDA or cuDNN out of LD_LIBRARY_PATH.

False alarms: a driver that is another one where the job runs.""",
    "launch-mismatch": """\
Meaning: CMD's flags, the environment and the machine do not fit together: more ranks than devices, a world size that TP x PP
x CP does not divide, nodes that disagree about their number or which one they are, variables of another job or of a platform
that CMD's launcher reads otherwise than meant.

Evidence: NPROC_PER_NODE, NNODES, NODE_RANK (ms-swift), flags and PET_* (torchrun), --num_gpus, --include and the hostfile
(deepspeed), --num_processes, --gpu_ids and the config file (accelerate), SLURM_*, JOB_COMPLETION_INDEX, RANK and WORLD_SIZE, as
each launcher reads them; CUDA_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES as CUDA and the runtime read them (the first entry
that is no device ends the list, one that stands there twice leaves none); the GPUs that NVML or the driver's files show. With
--wait: what the nodes tell each other.

What to do: as said with each line. ms-swift starts torchrun only where NPROC_PER_NODE or NNODES is set; without both it is one
process. accelerate counts the processes of all machines. torchrun reads neither NPROC_PER_NODE nor NNODES. deepspeed ignores
CUDA_VISIBLE_DEVICES beside --num_gpus and --include.

False alarms: doctor that runs elsewhere than the job will (outside its container, on the login node) sees other devices; a
script that sets variables itself before it starts CMD.""",
    "leftover-process": """\
Meaning: something of an earlier job is still here: processes whose launcher is gone, which may hold GPU memory, the port or
files; or files in /dev/shm that no process has open.

Evidence: /proc: the environment of a rank (RANK, LOCAL_RANK, TORCHELASTIC_RUN_ID), or a DataLoader, compile or vLLM worker, and
process 1 as its parent, where torchrun, accelerate or deepspeed should be. Files torch_*, nccl-*, psm_*, sem.mp-* and their like
that are older than a minute, take a tenth of /dev/shm or a GiB, and are in no process's memory map.

What to do: kill the processes named, kill -9 after ten seconds; remove the files named. One in state D waits for its device or
file system: no signal ends it. diag itself ends and removes nothing.

False alarms: a job whose launcher is there is a note (`other jobs`), as is all where process 1 is a Python program, which may
be the launcher. Files that another container shares through /dev/shm (--ipc=host, a pod) are a note: its processes are not
seen from here.""",
    "checkpoint-write-error": """\
Meaning: CMD cannot write where it saves: read-only, no right, a file or a broken link in the way, or a limit of the file size.

Evidence: the mount's flags, access(2) with this user's rights, `ulimit -f`. Nothing is written to find out.

What to do: mount it writable or give the right, or choose another --output_dir (--save); `ulimit -f unlimited`.

False alarms: a directory that another mount will cover; a job that runs as another user than doctor.""",
}
