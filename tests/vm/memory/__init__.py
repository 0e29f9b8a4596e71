"""Memory that runs out, for real: a kernel with cgroup v2, strict overcommit and a kernel log, and `diag run`
beside the job."""
