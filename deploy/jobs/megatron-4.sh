#!/usr/bin/env bash
# Full-parameter DPO of Qwen3-30B-A3B by `megatron rlhf` of ms-swift 4.x, on one node of 8 GPUs with 80 GB or on several:
#
#   DATASET=pairs.jsonl bash megatron-4.sh estimate      # does it fit?
#   DATASET=pairs.jsonl bash megatron-4.sh doctor        # on all nodes at once: what stands in the way
#   DATASET=pairs.jsonl bash megatron-4.sh               # on all nodes: the training under `diag run`
#
# Several nodes: NNODES=2 NODE_RANK=0 (1 on the second) MASTER_ADDR=name-of-the-first in front of it, and on all nodes the same
# DIAG_TOKEN. README.md has the rest.
set -euo pipefail

# --- edit, or set in front of the command --------------------------------------------------------------------------
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B}  # or a folder with its safetensors
DATASET=${DATASET:?DATASET=pairs.jsonl: lines with messages and rejected_response}
OUTPUT=${OUTPUT:-output/qwen3-30b-a3b-dpo}  # of several nodes: a folder that all of them share
export NNODES=${NNODES:-1} NODE_RANK=${NODE_RANK:-0} NPROC_PER_NODE=${NPROC_PER_NODE:-8}
export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
# -------------------------------------------------------------------------------------------------------------------

command=(
  megatron rlhf --rlhf_type dpo
  --model "$MODEL" --save_safetensors true
  --dataset "$DATASET" --split_dataset_ratio 0 --load_from_cache_file true --dataset_num_proc 8 --dataloader_num_workers 4
  --tuner_type full --beta 0.1 --rpo_alpha 0.1
  --tensor_model_parallel_size 4 --sequence_parallel true --expert_model_parallel_size 8 --expert_tensor_parallel_size 1
  --moe_grouped_gemm true --moe_permute_fusion true --moe_aux_loss_coeff 1e-3
  --micro_batch_size 1 --global_batch_size 64 --max_length 8192 --padding_free true --attention_backend flash
  --recompute_granularity full --recompute_method uniform --recompute_num_layers 1
  --use_precision_aware_optimizer true --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16
  --cross_entropy_loss_fusion false
  --num_train_epochs 1 --lr 1e-6 --min_lr 1e-7 --lr_warmup_fraction 0.05
  --output_dir "$OUTPUT" --save_steps 100 --save_total_limit 2 --no_save_optim true --no_save_rng true --logging_steps 1
)

case "${1:-run}" in
  run) exec diag run -- "${command[@]}" ;;
  plain) exec "${command[@]}" ;;
  estimate) exec diag estimate -- "${command[@]}" ;;
  doctor) exec diag doctor --wait "${WAIT:-120}" -- "${command[@]}" ;;
  print) printf '%q ' "${command[@]}" && echo ;;
  *) echo "usage: bash $0 [run|plain|estimate|doctor|print]" >&2 && exit 2 ;;
esac
