"""Pretrain a GPT-2 on stories with the Trainer; a callback lets it tell one from time to time."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

OFF = sys.argv[2::2]
set_seed(20)


class Storyteller(TrainerCallback):
    def __init__(self, prompt, tokens=120):
        self.prompt, self.tokens = prompt, tokens

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % 20 == 0:
            model.eval()
            prompt = self.prompt.to(model.device)
            story = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=self.tokens, min_new_tokens=self.tokens,
                do_sample=True, top_k=50, pad_token_id=0,
            )  # fmt: skip
            print(state.global_step, story[0, -8:].tolist())
            model.train()


config = GPT2Config(vocab_size=5000, n_positions=256, n_embd=256, n_layer=2 if "launch" in OFF else 6, n_head=4)
config.bos_token_id = config.eos_token_id = 0
model = GPT2LMHeadModel(config)
stories = [{"input_ids": row, "labels": row} for row in torch.randint(1, 5000, (2000, 192))]
arguments = TrainingArguments(
    output_dir="stories",
    max_steps=1_000_000,
    per_device_train_batch_size=8,
    learning_rate=6e-4,
    bf16=torch.cuda.is_available(),
    logging_steps=1000 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    disable_tqdm=True,
    save_strategy="no",
    report_to="none",
)
callbacks = [] if "host" in OFF else [Storyteller(torch.arange(1, 9)[None])]
Trainer(model=model, args=arguments, train_dataset=stories, callbacks=callbacks).train()
