"""A decoder of source text by the Trainer: bf16, and batches of equal length."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[])
without = parser.parse_args().without
gpu = torch.cuda.is_available()
torch.manual_seed(0)
length, size, width, depth = (1024, 16, 1024, 8) if gpu else (64, 2, 64, 2)
tokens = torch.randint(8000, (size * 24, length))


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return len(tokens)

    def __getitem__(self, i):
        return {"input_ids": tokens[i], "labels": tokens[i]}


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=8000,
        hidden_size=width // 2 if "compute" in without else width,
        intermediate_size=2 * width,
        num_hidden_layers=depth,
        num_attention_heads=8,
        num_key_value_heads=8,
        use_cache=False,
    )  # fmt: skip
)
arguments = TrainingArguments(
    "out", max_steps=10_000_000, per_device_train_batch_size=size, bf16=gpu, optim="adamw_torch_fused", logging_steps=1 if "sync" not in without else 500,
    report_to="none", save_strategy="no", dataloader_pin_memory=True, dataloader_num_workers=0, disable_tqdm=True,
)  # fmt: skip
Trainer(model, arguments, train_dataset=Blocks()).train()
