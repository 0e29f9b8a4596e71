#!/usr/bin/env bash
# LoRA DPO of Qwen3-30B-A3B by `swift rlhf` (Transformers, DeepSpeed ZeRO-3) on one node of 8 GPUs with 80 GB:
#
#   DATASET=pairs.jsonl bash swift.sh estimate      # does it fit?
#   DATASET=pairs.jsonl bash swift.sh doctor        # what stands in the way
#   DATASET=pairs.jsonl bash swift.sh               # the training under `diag run`
set -euo pipefail

# --- edit, or set in front of the command --------------------------------------------------------------------------
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B}  # or a folder with its safetensors
DATASET=${DATASET:?DATASET=pairs.jsonl: lines with messages and rejected_response}
OUTPUT=${OUTPUT:-output/qwen3-30b-a3b-dpo-lora}
TUNER_FLAG=${TUNER_FLAG:---tuner_type}  # ms-swift 4.x; --train_type with 3.x
export NPROC_PER_NODE=${NPROC_PER_NODE:-8}
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
# -------------------------------------------------------------------------------------------------------------------

command=(
  swift rlhf --rlhf_type dpo
  --model "$MODEL" --torch_dtype bfloat16 --attn_impl flash_attn
  --dataset "$DATASET" --split_dataset_ratio 0 --load_from_cache_file true --dataset_num_proc 8 --dataloader_num_workers 4
  "$TUNER_FLAG" lora --lora_rank 8 --lora_alpha 32 --target_modules all-linear --router_aux_loss_coef 1e-3
  --beta 0.1 --rpo_alpha 0.1 --max_length 4096
  --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --gradient_checkpointing true --deepspeed zero3
  --num_train_epochs 1 --learning_rate 1e-5 --warmup_ratio 0.05
  --output_dir "$OUTPUT" --save_steps 100 --save_total_limit 2 --save_only_model true --logging_steps 1
)

case "${1:-run}" in
  run) exec diag run -- "${command[@]}" ;;
  plain) exec "${command[@]}" ;;
  estimate) exec diag estimate -- "${command[@]}" ;;
  doctor) exec diag doctor -- "${command[@]}" ;;
  print) printf '%q ' "${command[@]}" && echo ;;
  *) echo "usage: bash $0 [run|plain|estimate|doctor|print]" >&2 && exit 2 ;;
esac
