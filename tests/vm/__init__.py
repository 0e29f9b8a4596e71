"""What no machine at hand can show, in a virtual one: RDMA (soft-RoCE), and memory troubles under cgroup v2."""
