"""Real logs of ms-swift, Megatron and HF Trainer on a CPU, broken on purpose or healthy: `python -m
tests.labs.log_lab.swift`."""
