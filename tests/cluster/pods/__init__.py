"""A pod of two containers with one process namespace, in podman and runc: `diag watch` beside a job that it
did not start."""
