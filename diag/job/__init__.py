"""The bundled Megatron DPO job and its fault injection.

`python -m diag.job` is the small one (megatron-core on gloo, starts in seconds); `python -m
diag.job.megatron` starts the real `megatron rlhf --rlhf_type dpo` of ms-swift. `python -m diag.job.faults`
lists what can be broken in both.
"""
