"""Label the lines of scanned pages by their text and place; a small encoder with the Trainer on a laptop."""

import argparse

import torch
from torch import nn
from transformers import RobertaConfig, RobertaModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["data", "host", "optimizer", "compute"])
without = parser.parse_args().without
set_seed(64)
LINES, KINDS, BATCH = 96, 9, 12


class Pages(torch.utils.data.Dataset):
    def __init__(self, n=960):
        self.words = torch.randint(5, 3000, (n, LINES))
        self.boxes = torch.rand(n, LINES, 4)
        self.labels = torch.randint(KINDS, (n, LINES))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"words": self.words[i], "boxes": self.boxes[i], "labels": self.labels[i]}


class Batched(Pages):
    def __init__(self):
        super().__init__()
        self.rows = [
            {"words": w, "boxes": b, "labels": y}
            for w, b, y in zip(self.words.split(BATCH), self.boxes.split(BATCH), self.labels.split(BATCH))
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class LayoutModel(nn.Module):
    def __init__(self, layers):
        super().__init__()
        config = RobertaConfig(
            vocab_size=3000, hidden_size=192, num_hidden_layers=layers, num_attention_heads=6, intermediate_size=768,
            max_position_embeddings=LINES + 8,
        )  # fmt: skip
        self.encoder = RobertaModel(config, add_pooling_layer=False)
        self.place, self.head = nn.Linear(4, 192), nn.Linear(192, KINDS)

    def forward(self, words, boxes, labels=None):
        embedded = self.encoder.embeddings.word_embeddings(words) + self.place(boxes)
        logits = self.head(self.encoder(inputs_embeds=embedded).last_hidden_state)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


arguments = TrainingArguments(
    output_dir="layouts",
    max_steps=1_000_000,
    per_device_train_batch_size=1 if "data" in without else BATCH,
    optim="adamw_torch_fused" if "optimizer" in without else "adamw_torch",
    learning_rate=2e-4,
    logging_steps=500 if "host" in without else 5,
    disable_tqdm="host" in without,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    model=LayoutModel(2 if "compute" in without else 4),
    args=arguments,
    train_dataset=Batched() if "data" in without else Pages(),
    data_collator=(lambda rows: rows[0]) if "data" in without else None,
)
trainer.train()
