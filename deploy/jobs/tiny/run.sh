#!/usr/bin/env bash
# Smoke test of this machine: the real `megatron rlhf --rlhf_type dpo` on a tiny random Qwen3-MoE made here, without network:
#
#   diag run -- bash run.sh                                     # healthy: a minute or two, checkpoints, nothing found
#   FAULT=data-hang:rank=1 diag run -- bash run.sh              # a fire drill: does diag see it on this machine?
#
# Words after run.sh are more flags for `megatron rlhf`; of two the last wins. README.md has the rest.
set -euo pipefail

fail() { printf 'error: %s\n\nhint: %s\n' "$2" "$3" >&2; exit "$1"; }
whole() { case ${!1} in '' | 0* | *[!0-9]*) fail 2 "$1=${!1} is no whole number above 0" "$1=$2" ;; esac; }

# --- set in front of the command -----------------------------------------------------------------------------------
gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    # as CUDA reads it: up to the first word that is no device
    awk -F, '{ n = 0; while (n < NF && $(n + 1) ~ /^([0-9]+$|GPU-|MIG-)/) n++; print n }' <<<"$CUDA_VISIBLE_DEVICES"
  elif command -v nvidia-smi >/dev/null; then
    { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ' || true
  else
    find /dev -maxdepth 1 -name 'nvidia[0-9]*' 2>/dev/null | wc -l  # an image without nvidia-smi
  fi
}
if [ -z "${CPU:-}" ] && [ -z "${GPUS:-}" ] && [ "$(gpus)" = 0 ]; then
  echo "run.sh: no GPU here: on the CPU (CPU=1)" >&2
  CPU=1
fi
CPU=${CPU:-0}                       # 1: no GPU is used; gloo instead of NCCL
if [ "$CPU" = 1 ]; then GPUS=${GPUS:-2}; else GPUS=${GPUS:-$(gpus)}; fi  # ranks, all on this machine
[ "$GPUS" != 0 ] || GPUS=1
whole GPUS 1
layout=(1 1 1)                      # tensor, pipeline and expert parallel sizes
if (( GPUS % 4 == 0 )); then layout=(2 2 2); elif (( GPUS % 2 == 0 )); then layout=(2 1 2); fi
TP=${TP:-${layout[0]}} PP=${PP:-${layout[1]}} EP=${EP:-${layout[2]}}
ITERS=${ITERS:-30} SAVE_STEPS=${SAVE_STEPS:-10} SAVE_OPTIM=${SAVE_OPTIM:-true}
WORKERS=${WORKERS:-2} ATTENTION=${ATTENTION:-unfused}
ASSETS=${ASSETS:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/diag/job-assets}  # model and data are made here once
OUTPUT=${OUTPUT:-$(mktemp -u "${TMPDIR:-/tmp}/diag-tiny-XXXXXX")}  # checkpoints; default: a new folder
FAULT=${FAULT:-${DIAG_FAULT:-}}     # NAME[:key=value,...]; `python -m diag_job.faults` lists them
SWIFT=${SWIFT:-}                    # 4 or 3, of ms-swift's version; default: the installed one's
PYTHON=${PYTHON:-}                  # one that has diag and ms-swift; default: the one beside `megatron`, or on PATH
PRINT=${PRINT:-}                    # 1: print the command instead of running it; convert: that of SWIFT=3 before it
# -------------------------------------------------------------------------------------------------------------------
# MODEL and DATASET: your own, then none is made.
for name in GPUS TP PP EP ITERS SAVE_STEPS; do whole "$name" 2; done
case $CPU in 0 | 1) ;; *) fail 2 "CPU=$CPU is neither 0 nor 1" "CPU=1" ;; esac
case $SAVE_OPTIM in true | false) ;; *) fail 2 "SAVE_OPTIM=$SAVE_OPTIM is neither true nor false" "SAVE_OPTIM=true" ;; esac
(( GPUS % (TP * PP) == 0 )) || fail 2 "$GPUS ranks are no multiple of TP x PP = $TP x $PP" "GPUS=$((TP * PP)), or TP=1 PP=1"
(( GPUS % (EP * PP) == 0 )) || fail 2 "$GPUS ranks are no multiple of EP x PP = $EP x $PP" "EP=1"
data_parallel=$((GPUS / TP / PP))
GLOBAL_BATCH=${GLOBAL_BATCH:-$(((7 + data_parallel) / data_parallel * data_parallel))}  # 8, or a little more
whole GLOBAL_BATCH 8
(( GLOBAL_BATCH % data_parallel == 0 )) ||
  fail 2 "GLOBAL_BATCH=$GLOBAL_BATCH is no multiple of the $data_parallel data parallel ranks" "GLOBAL_BATCH=$data_parallel"

find_python() {  # one that imports the words given
  local candidate beside
  beside=$(dirname "$(command -v megatron || echo /nowhere/megatron)")
  for candidate in "$PYTHON" "$beside/python3" "$beside/python" python3 python; do
    if [ -n "$candidate" ] && "$candidate" -c "import $1" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

if [ -z "$SWIFT" ]; then
  SWIFT=4
  any=$(find_python sys)
  if [ -n "$any" ]; then
    SWIFT=$("$any" -c 'import importlib.metadata as m; print(m.version("ms-swift").split(".")[0])' 2>/dev/null || echo 4)
  fi
fi
if [ "$CPU" = 1 ]; then size=tiny; else size=small; fi
model=${MODEL:-$ASSETS/qwen3-moe-$size} dataset=${DATASET:-$ASSETS/pairs.jsonl}
mcore=$ASSETS/qwen3-moe-$size-mcore
if [ -n "${MODEL:-}" ]; then mcore=$ASSETS/$(basename "$MODEL")-$(printf %s "$MODEL" | cksum | cut -d' ' -f1)-mcore; fi
mcore=${MCORE_MODEL:-$mcore}
if [ "$TP" -gt 1 ]; then sequence_parallel=true; else sequence_parallel=false; fi
if [ "$SAVE_OPTIM" = true ]; then no_save_optim=false; else no_save_optim=true; fi

command=(
  megatron rlhf --rlhf_type dpo
  --model "$model" --dataset "$dataset" --split_dataset_ratio 0 --load_from_cache_file false
  --torch_dtype bfloat16 --beta 0.1 --rpo_alpha 0.1 --loss_type sigmoid
  --tensor_model_parallel_size "$TP" --sequence_parallel "$sequence_parallel" --pipeline_model_parallel_size "$PP"
  --expert_model_parallel_size "$EP" --expert_tensor_parallel_size 1 --moe_grouped_gemm true --moe_aux_loss_coeff 1e-3
  --micro_batch_size 1 --global_batch_size "$GLOBAL_BATCH" --max_length 256 --train_iters "$ITERS"
  --recompute_granularity full --recompute_method uniform --recompute_num_layers 1
  --attention_backend "$ATTENTION" --cross_entropy_loss_fusion true
  --finetune true --lr 1e-5 --min_lr 1e-6 --lr_warmup_fraction 0.05
  --no_save_optim "$no_save_optim" --no_save_rng "$no_save_optim" --ddp_timeout 600
)
[ -n "${MODEL:-}" ] || command+=(--model_type qwen3_moe --template qwen3)
convert=(swift export --model "$model" --to_mcore true --torch_dtype bfloat16 --output_dir "$mcore")
case $SWIFT in
  4) command+=(
    --tuner_type full --check_model false --gradient_accumulation_fusion false --dataloader_num_workers "$WORKERS"
    --output_dir "$OUTPUT" --save_steps "$SAVE_STEPS" --logging_steps 1) ;;
  3) command+=(
    --train_type full --load "$mcore" --no_gradient_accumulation_fusion true --num_workers "$WORKERS"
    --save "$OUTPUT" --save_interval "$SAVE_STEPS" --log_interval 1)
    [ -n "${MODEL:-}" ] || convert+=(--model_type qwen3_moe --template qwen3) ;;
  *) fail 2 "SWIFT=$SWIFT" "SWIFT=4 for ms-swift 4.x, SWIFT=3 for 3.8 to 3.12" ;;
esac
if [ "$CPU" = 1 ]; then
  [ "$SWIFT" = 4 ] || fail 2 "ms-swift 3.x does not run without a GPU" "CPU=0, or ms-swift 4.x"
  command+=(--ddp_backend gloo)
fi
command+=("$@")

case $PRINT in
  '') ;;
  convert) printf '%q ' "${convert[@]}" && echo && exit ;;
  *) printf '%q ' "${command[@]}" && echo && exit ;;
esac

command -v megatron >/dev/null || fail 127 "there is no \`megatron\` command: ms-swift is not installed in this environment" \
  "activate the environment of your training, or pip install ms-swift with Megatron-Core and TransformerEngine as its manual says"

PYTHON_OF_DIAG=$(find_python diag_job.hooks)
if [ -z "$PYTHON_OF_DIAG" ] && { [ -z "${MODEL:-}" ] || [ -z "${DATASET:-}" ] || [ -n "$FAULT" ] || [ "$CPU" = 1 ]; }; then
  fail 1 "no Python beside \`megatron\` or on PATH has diag, which makes the model and the data" \
    "pip install diag into the environment of ms-swift, or PYTHON=/path/to/python that has diag, tokenizers and safetensors"
fi

export NPROC_PER_NODE=$GPUS  # also for one: without it ms-swift starts no torchrun
# Of a job of many nodes around us: this one is of one machine. torchrun takes PET_NNODES for --nnodes, which Kubeflow sets.
unset NNODES NODE_RANK MASTER_ADDR RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!PET_@}"
export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false} CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
if [ -z "${MODEL:-}" ] || [ -z "${DATASET:-}" ]; then
  "$PYTHON_OF_DIAG" -m diag_job.assets "$ASSETS" --size "$size" >/dev/null
fi
if [ -d "$model" ] && [ -e "$dataset" ]; then  # nothing to be fetched
  export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
  if mkdir -p "$ASSETS/cache" 2>/dev/null && [ -w "$ASSETS/cache" ]; then  # not another user's
    export HF_HOME=${HF_HOME:-$ASSETS/cache/hf} MODELSCOPE_CACHE=${MODELSCOPE_CACHE:-$ASSETS/cache/modelscope}
  fi
fi
if [ "$CPU" = 1 ]; then export DIAG_JOB_DEVICE=cpu OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}; fi
if [ "$SWIFT" = 3 ] && [ ! -d "$mcore" ]; then  # by one process, before a fault is armed
  (  # whole or not at all: one that is broken off must not be trained from the next time
    part=$mcore.part.$$
    trap 'rm -rf "$part"' EXIT
    unset NPROC_PER_NODE DIAG_FAULT
    mkdir -p "$(dirname "$mcore")"
    "${convert[@]}" --output_dir "$part"
    [ -d "$mcore" ] || mv "$part" "$mcore"
  )
fi
if [ -n "$FAULT" ] || [ "$CPU" = 1 ]; then
  hooks=$("$PYTHON_OF_DIAG" -m diag_job.hooks ${FAULT:+--fault "$FAULT"} --ranks "$GPUS") || exit 2
  export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$hooks  # behind diag's own hook, which hands on to this one
  if [ -n "$FAULT" ]; then export DIAG_FAULT=$FAULT; fi
fi
mkdir -p "$OUTPUT"
echo "run.sh: $GPUS ranks, TP $TP PP $PP EP $EP; checkpoints below $OUTPUT" >&2
exec "${command[@]}"
