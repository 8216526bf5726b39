"""Bird calls from short spectra with the Trainer; a few hundred recordings make an epoch."""

from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class Options:
    without: list[str] = field(default_factory=list, metadata={"help": "data or host"})
    recordings: int = 640
    species: int = 30


class Calls(torch.utils.data.Dataset):
    def __init__(self, count, species):
        self.spectra, self.species = torch.rand(count, 40, 72), torch.randint(species, (count,))

    def __len__(self):
        return len(self.species)

    def __getitem__(self, i):
        start = int(torch.randint(9, (1,)))
        return {"spectrum": self.spectra[i, :, start : start + 64], "labels": self.species[i]}


class CallNet(nn.Module):
    def __init__(self, species, width=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(40, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 5, padding=2),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, species)

    def forward(self, spectrum, labels=None):
        logits = self.head(self.body(spectrum))
        return {"loss": nn.functional.cross_entropy(logits, labels, label_smoothing=0.1), "logits": logits}


class CallTrainer(Trainer):
    correct, count = 0, 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        self.correct += int((out["logits"].argmax(1) == inputs["labels"]).sum())
        self.count += len(inputs["labels"])
        return (out["loss"], out) if return_outputs else out["loss"]


def main():
    (options,) = HfArgumentParser(Options).parse_args_into_dataclasses()
    set_seed(14)
    arguments = TrainingArguments(
        output_dir="calls",
        num_train_epochs=5000,
        per_device_train_batch_size=32,
        dataloader_num_workers=0 if "data" in options.without else 6,
        use_cpu=True,
        learning_rate=2e-3,
        logging_strategy="no" if "host" in options.without else "epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    calls = Calls(options.recordings, options.species)
    CallTrainer(CallNet(options.species), arguments, train_dataset=calls).train()


if __name__ == "__main__":
    main()
