"""Train a causal language model with transformers' Trainer: the script that people write."""

import argparse

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

p = argparse.ArgumentParser()
p.add_argument("--model", required=True)
p.add_argument("--data", required=True)
p.add_argument("--eval-data")
p.add_argument("--out", required=True)
p.add_argument("--column", default="text")
p.add_argument("--keep-columns", action="store_true")
p.add_argument("--no-pad-token", action="store_true")
p.add_argument("--padding", default="collator", choices=["collator", "tokenizer", "none"])
p.add_argument("--eval-strategy", default="no")
p.add_argument("--best", action="store_true")
p.add_argument("--resume")
p.add_argument("--steps", type=int, default=6)
p.add_argument("--lr", type=float, default=1e-4)
p.add_argument("--workers", type=int, default=1)
p.add_argument("--num-proc", type=int)
p.add_argument("--fp16", action="store_true")
p.add_argument("--bf16", action="store_true")
p.add_argument("--deepspeed")
p.add_argument("--optim", default="adamw_torch")
p.add_argument("--lora", action="store_true")
p.add_argument("--untokenized", action="store_true")
options = p.parse_args()


def main():
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if tokenizer.pad_token is None and not options.no_pad_token:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(options.model)
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"]))
        model.print_trainable_parameters()
    files = {"train": options.data}
    if options.eval_data:
        files["validation"] = options.eval_data
    dataset = load_dataset("json", data_files=files)

    def tokenize(batch):
        padding = "max_length" if options.padding == "tokenizer" else False
        rows = tokenizer(batch[options.column], truncation=True, max_length=64, padding=padding)
        if options.padding != "collator":
            rows["labels"] = [list(ids) for ids in rows["input_ids"]]
        return rows

    if not options.untokenized:
        dataset = dataset.map(
            tokenize, batched=True, num_proc=options.num_proc, remove_columns=dataset["train"].column_names
        )
    collator = default_data_collator
    if options.padding == "collator":
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    arguments = TrainingArguments(
        output_dir=options.out,
        per_device_train_batch_size=4,
        max_steps=options.steps,
        logging_steps=1,
        save_steps=3,
        learning_rate=options.lr,
        eval_strategy=options.eval_strategy,
        eval_steps=3,
        load_best_model_at_end=options.best,
        remove_unused_columns=not options.keep_columns,
        dataloader_num_workers=options.workers,
        fp16=options.fp16,
        bf16=options.bf16,
        deepspeed=options.deepspeed,
        optim=options.optim,
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset["train"],
        eval_dataset=dataset.get("validation"),
        data_collator=collator,
    )
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model()


if __name__ == "__main__":
    main()
