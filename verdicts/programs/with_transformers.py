"""Train a model with the Trainer of Transformers."""

import models
import options
import samples
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        out = self.model(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


class Named(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index]
        return {"x": x, "labels": y}


def main():
    args = options.parse()
    torch.manual_seed(args.seed)
    x, y = samples.arrays(args)
    rows = samples.Lines(x, y) if args.samples == "lines" else samples.Memory(x, y)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        use_cpu=args.device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=50,
        dataloader_pin_memory=False,
    )
    Trainer(model=WithLoss(models.build(args)), args=arguments, train_dataset=Named(rows)).train()


if __name__ == "__main__":
    main()
