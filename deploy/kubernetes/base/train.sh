# Qwen3-30B-A3B, DPO, 2 nodes with 8 GPUs of 80 GB: some 53 GiB a GPU, 350 GiB of host memory a node at a save (diag estimate).
# Kubeflow's operator tells the nodes by PET_*, the other variants by what ms-swift reads.
export NNODES=${NNODES:-$PET_NNODES} NODE_RANK=${NODE_RANK:-$PET_NODE_RANK}
export MASTER_ADDR=${MASTER_ADDR:-$PET_MASTER_ADDR} MASTER_PORT=${MASTER_PORT:-$PET_MASTER_PORT}
unset PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE PET_MASTER_ADDR PET_MASTER_PORT
exec megatron rlhf --rlhf_type dpo \
  --model /data/Qwen3-30B-A3B --dataset /data/pairs.jsonl --tuner_type full \
  --tensor_model_parallel_size 2 --pipeline_model_parallel_size 2 --expert_model_parallel_size 8 --sequence_parallel true \
  --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \
  --micro_batch_size 1 --global_batch_size 32 --max_length 4096 --num_train_epochs 1 --lr 1e-6 \
  --save_steps 200 --logging_steps 1 --dataloader_num_workers 4 --output_dir /data/out
