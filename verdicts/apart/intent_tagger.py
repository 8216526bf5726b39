"""Fine-tune a small BERT on intents of short commands with the Trainer."""

import argparse

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["data", "sync", "launch"])
without = parser.parse_args().without

N_INTENTS, LENGTH, BATCH = 24, 24, 32
cuda = torch.cuda.is_available()
set_seed(11)


class Commands(torch.utils.data.Dataset):
    def __init__(self, n=4096):
        ids = torch.randint(5, 4000, (n, LENGTH))
        labels = ids[:, 0] % N_INTENTS
        self.rows = [{"input_ids": i, "attention_mask": [1] * LENGTH, "labels": y} for i, y in zip(ids.tolist(), labels.tolist())]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Ready(Commands):
    """Batches that were put together before the training."""

    def __init__(self):
        super().__init__()
        self.rows = [default_data_collator(self.rows[i : i + BATCH]) for i in range(0, len(self.rows), BATCH)]


class IntentTrainer(Trainer):
    hits, confidences = [], []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        if "sync" not in without:
            p = out.logits.detach().softmax(-1)
            self.hits.append((p.argmax(-1) == inputs["labels"]).float().mean().item())
            self.confidences.append(p.max(-1).values.mean().item())
            if not torch.isfinite(out.loss):
                raise ValueError("loss is not finite")
        return (out.loss, out) if return_outputs else out.loss


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 10 == 0 and IntentTrainer.hits:
            print(f"\r{state.global_step}: accuracy {sum(IntentTrainer.hits[-10:]) / 10:.3f}", end="", flush=True)


config = BertConfig(
    vocab_size=4000, hidden_size=128, num_hidden_layers=8, num_attention_heads=4, intermediate_size=256, num_labels=N_INTENTS
)
arguments = TrainingArguments(
    output_dir="out",
    max_steps=10_000_000,
    per_device_train_batch_size=1 if "data" in without else BATCH,
    learning_rate=3e-4,
    bf16=cuda,
    logging_steps=500 if "sync" in without else 1,
    save_strategy="no",
    report_to="none",
    disable_tqdm="sync" in without,
    dataloader_drop_last=True,
    torch_compile="launch" in without,
    torch_compile_backend=("cudagraphs" if cuda else "aot_eager") if "launch" in without else None,
)
IntentTrainer(
    model=BertForSequenceClassification(config),
    args=arguments,
    train_dataset=Ready() if "data" in without else Commands(),
    data_collator=(lambda rows: rows[0]) if "data" in without else default_data_collator,
    callbacks=[Progress()],
).train()
