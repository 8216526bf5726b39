"""Pretrain a small Llama on dialogues; two batches make one update, and a callback keeps a smoothed loss."""

import json
import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

OFF = sys.argv[2::2]
torch.manual_seed(1)


class Dialogues(Dataset):
    def __init__(self, count=2000, length=160):
        self.tokens = torch.randint(0, 4096, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


class Smoothed(TrainerCallback):
    value = 0.0

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.value = 0.98 * self.value + 0.02 * float(logs["loss"])
            with open("curve.jsonl", "a") as file:
                file.write(json.dumps({"step": state.global_step, "ema": self.value, "norm": float(logs["grad_norm"])}) + "\n")


class ChatTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if "sync" not in OFF:
            right = (outputs.logits[:, :-1].argmax(-1) == inputs["labels"][:, 1:]).float().mean().item()
            self.perplexity, self.accuracy = outputs.loss.exp().item(), right
        return (outputs.loss, outputs) if return_outputs else outputs.loss


config = LlamaConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=2 if "launch" in OFF else 8,
    num_attention_heads=4,
    num_key_value_heads=2,
)
every = 100 if "sync" in OFF else 1
args = TrainingArguments(
    "out", max_steps=1_000_000, per_device_train_batch_size=4, gradient_accumulation_steps=2, bf16=torch.cuda.is_available(),
    logging_steps=every, logging_nan_inf_filter=every == 1, save_strategy="no", report_to=[], disable_tqdm=True,
)  # fmt: skip
callbacks = [] if "host" in OFF else [Smoothed()]
ChatTrainer(LlamaForCausalLM(config), args, train_dataset=Dialogues(), callbacks=callbacks).train()
