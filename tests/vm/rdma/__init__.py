"""Real RDMA without hardware: soft-RoCE in a virtual machine, read by diag's own sources and watched by diag
itself."""
