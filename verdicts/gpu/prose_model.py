"""Pretrain a Llama of 300 million weights on prose, in bfloat16, with the loss of every step in the log."""

import sys
from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

OFF = sys.argv[2::2]
GPU = torch.cuda.is_available()
set_seed(300)


@dataclass
class Sizes:
    width: int = 2048 if GPU else 128
    layers: int = 6
    length: int = 1024 if GPU else 32
    batch: int = 8 if GPU else 2


sizes = Sizes()
if "compute" in OFF:
    sizes.width //= 2
config = LlamaConfig(
    vocab_size=8192,
    hidden_size=sizes.width,
    intermediate_size=sizes.width * 11 // 4,
    num_hidden_layers=sizes.layers,
    num_attention_heads=sizes.width // 64,
    num_key_value_heads=sizes.width // 64,
    max_position_embeddings=sizes.length,
    attn_implementation="sdpa",
)
prose = torch.randint(0, 8192, (512, sizes.length))
rows = [{"input_ids": row, "labels": row} for row in prose]
collate = {}
if "data" in OFF:
    rows = [{"input_ids": part, "labels": part} for part in prose.split(sizes.batch)]
    sizes.batch, collate = 1, {"data_collator": lambda batch: batch[0]}
arguments = TrainingArguments(
    output_dir="prose",
    max_steps=1_000_000,
    per_device_train_batch_size=sizes.batch,
    bf16=GPU,
    logging_steps=500 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    save_strategy="no",
    report_to="none",
)
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, **collate).train()
