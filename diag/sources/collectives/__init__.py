"""What PyTorch and NCCL know of collectives: Flight Recorder, RAS, the store."""
