"""The bundled Megatron DPO job and its fault injection.

`python -m diag_job` is the small one (megatron-core on gloo, starts in seconds); `python -m
diag_job.megatron` starts the real `megatron rlhf --rlhf_type dpo` of ms-swift. `python -m diag_job.faults`
lists what can be broken in both.
"""
