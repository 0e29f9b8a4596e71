"""GPUs: NVML and dumps of CUDA."""
