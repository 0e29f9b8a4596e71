"""DPO with TRL's own trainer."""

import argparse

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

p = argparse.ArgumentParser()
p.add_argument("--model", required=True)
p.add_argument("--data", required=True)
p.add_argument("--out", required=True)
p.add_argument("--steps", type=int, default=4)
p.add_argument("--lora", action="store_true")
options = p.parse_args()


def main():
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model)
    peft_config = None
    if options.lora:
        from peft import LoraConfig

        peft_config = LoraConfig(task_type="CAUSAL_LM", r=4)
    arguments = DPOConfig(
        output_dir=options.out,
        per_device_train_batch_size=2,
        max_steps=options.steps,
        logging_steps=1,
        save_steps=2,
        use_cpu=True,
        bf16=False,
        ddp_backend="gloo",
        report_to="none",
    )
    trainer = DPOTrainer(
        model=model,
        args=arguments,
        train_dataset=load_dataset("json", data_files=options.data, split="train"),
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
