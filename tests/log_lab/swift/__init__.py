"""Real logs of ms-swift, Megatron and HF Trainer jobs on a CPU: broken on purpose, or healthy. `python -m tests.log_lab.swift`."""
