"""What Megatron's gradient accumulation fusion (on by default) calls, for the CPU."""

from typing import Any


def wgrad_gemm_accum_fp32(total_input: Any, grad_output: Any, main_grad: Any) -> None:
    """main_grad += grad_output^T @ total_input, with leading dimensions flattened."""
    inputs = total_input.reshape(-1, total_input.shape[-1]).float()
    main_grad.add_(grad_output.reshape(-1, grad_output.shape[-1]).float().t() @ inputs)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32
