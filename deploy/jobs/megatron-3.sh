#!/usr/bin/env bash
# Full-parameter DPO of Qwen3-30B-A3B by `megatron rlhf` of ms-swift 3.8 to 3.12, on one node of 8 GPUs with 80 GB or on several:
#
#   DATASET=pairs.jsonl bash megatron-3.sh convert       # once, on one GPU: the weights as Megatron reads them
#   DATASET=pairs.jsonl bash megatron-3.sh estimate      # does it fit?
#   DATASET=pairs.jsonl bash megatron-3.sh doctor        # on all nodes at once: what stands in the way
#   DATASET=pairs.jsonl bash megatron-3.sh               # on all nodes: the training under `diag run`
#
# Several nodes: NNODES=2 NODE_RANK=0 (1 on the second) MASTER_ADDR=name-of-the-first in front of it, and on all nodes the same
# DIAG_TOKEN. README.md has the rest.
set -euo pipefail

# --- edit, or set in front of the command --------------------------------------------------------------------------
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B}  # or a folder with its safetensors
DATASET=${DATASET:?DATASET=pairs.jsonl: lines with messages and rejected_response}
MCORE_MODEL=${MCORE_MODEL:-Qwen3-30B-A3B-mcore}  # the converted weights, of several nodes on a disk that all of them share
OUTPUT=${OUTPUT:-output/qwen3-30b-a3b-dpo}  # of several nodes: a folder that all of them share
export NNODES=${NNODES:-1} NODE_RANK=${NODE_RANK:-0} NPROC_PER_NODE=${NPROC_PER_NODE:-8}
export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
# export MEGATRON_LM_PATH=/path/to/Megatron-LM  # core_r0.13.0 for 3.8 and 3.9, core_r0.14.0 for 3.10, core_r0.15.0 for 3.11 and
#                                               # 3.12; without it ms-swift clones it by git when it starts, on each node
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
# -------------------------------------------------------------------------------------------------------------------

command=(
  megatron rlhf --rlhf_type dpo
  --model "$MODEL" --load "$MCORE_MODEL" --finetune true
  --dataset "$DATASET" --split_dataset_ratio 0 --load_from_cache_file true --dataset_num_proc 8 --num_workers 4
  --train_type full --beta 0.1 --rpo_alpha 0.1
  --tensor_model_parallel_size 4 --sequence_parallel true --expert_model_parallel_size 8 --expert_tensor_parallel_size 1
  --moe_grouped_gemm true --moe_permute_fusion true --moe_aux_loss_coeff 1e-3
  --micro_batch_size 1 --global_batch_size 64 --max_length 8192 --padding_free true --attention_backend flash
  --recompute_granularity full --recompute_method uniform --recompute_num_layers 1
  --use_precision_aware_optimizer true --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16
  --cross_entropy_loss_fusion false
  --max_epochs 1 --lr 1e-6 --min_lr 1e-7 --lr_warmup_fraction 0.05
  --save "$OUTPUT" --save_interval 100 --no_save_optim true --no_save_rng true --log_interval 1
)

convert=(swift export --model "$MODEL" --to_mcore true --torch_dtype bfloat16 --output_dir "$MCORE_MODEL")

case "${1:-run}" in
  run) exec diag run -- "${command[@]}" ;;
  plain) exec "${command[@]}" ;;
  estimate) exec diag estimate -- "${command[@]}" ;;
  convert) exec "${convert[@]}" ;;
  doctor) exec diag doctor --wait "${WAIT:-120}" -- "${command[@]}" ;;
  print) printf '%q ' "${command[@]}" && echo ;;
  *) echo "usage: bash $0 [run|plain|estimate|doctor|convert|print]" >&2 && exit 2 ;;
esac
