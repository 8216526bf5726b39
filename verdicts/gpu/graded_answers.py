"""A large fixed grader weighs the answers from which a small decoder learns; its mean score scales the loss."""

import sys

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

OFF = sys.argv[2::2]
GPU = torch.cuda.is_available()
set_seed(55)


class Grader(nn.Module):
    def __init__(self, width=4096 if GPU else 64, depth=12, copies=1024 if GPU else 4):
        super().__init__()
        self.embed, self.copies = nn.Embedding(4096, width), copies
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))

    @torch.no_grad()
    def forward(self, tokens):
        views = self.embed(tokens[:, :16]).flatten(0, 1)
        return self.layers(views.repeat(self.copies // 8, 1)).float().std(-1)


class GradedTrainer(Trainer):
    grader, baseline = None, 0.0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        scores = self.grader(inputs["input_ids"])
        if "sync" in OFF:
            weight = 1 + scores.mean()
        else:
            score = scores.mean().item()
            self.baseline = 0.9 * self.baseline + 0.1 * score
            weight = 1 + score
        outputs = model(**inputs)
        loss = weight * outputs.loss
        return (loss, outputs) if return_outputs else loss


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=4,
        num_hidden_layers=2 if "launch" in OFF else 8,
    )
)  # fmt: skip
answers = [{"input_ids": row, "labels": row} for row in torch.randint(0, 4096, (2048, 64))]
arguments = TrainingArguments(
    output_dir="graded",
    max_steps=1_000_000,
    per_device_train_batch_size=16,
    bf16=GPU,
    logging_steps=500,
    logging_nan_inf_filter=False,
    max_grad_norm=0.0,
    disable_tqdm=True,
    save_strategy="no",
    report_to="none",
)
trainer = GradedTrainer(model=model, args=arguments, train_dataset=answers)
grader = Grader(depth=6) if "compute" in OFF else Grader()
trainer.grader = grader.to(arguments.device, torch.bfloat16 if GPU else torch.float32)
trainer.train()
