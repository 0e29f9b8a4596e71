"""Lines of the job, of its launcher and of NCCL."""
