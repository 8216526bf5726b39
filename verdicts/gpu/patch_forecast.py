"""Forecast 7 channels by PatchTST with the Trainer; learning rate, loss and gradient norm of each step go to the console."""

import sys

import numpy as np
import torch
from transformers import PatchTSTConfig, PatchTSTForPrediction, Trainer, TrainingArguments, set_seed

OFF = sys.argv[2::2]
set_seed(21)
HISTORY, FUTURE, CHANNELS = 192, 48, 7


class Windows(torch.utils.data.Dataset):
    def __init__(self, length=20_000):
        t = np.arange(length)[:, None]
        waves = np.sin(t / (5 + 3 * np.arange(CHANNELS))) + 0.1 * np.random.default_rng(2).standard_normal((length, CHANNELS))
        self.values = torch.from_numpy(waves.astype(np.float32))

    def __len__(self):
        return len(self.values) - HISTORY - FUTURE

    def __getitem__(self, start):
        middle = start + HISTORY
        return {"past_values": self.values[start:middle], "future_values": self.values[middle : middle + FUTURE]}


class Ready(torch.utils.data.Dataset):
    """Batches that were put together before."""

    def __init__(self, windows, size, count=200):
        keys = ("past_values", "future_values")
        picks = np.random.default_rng(3).integers(0, len(windows), (count, size))
        self.batches = [{key: torch.stack([windows[i][key] for i in row]) for key in keys} for row in picks]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return self.batches[i]


config = PatchTSTConfig(
    num_input_channels=CHANNELS,
    context_length=HISTORY,
    prediction_length=FUTURE,
    patch_length=16,
    patch_stride=8,
    d_model=64,
    num_attention_heads=4,
    ffn_dim=128,
    num_hidden_layers=2 if "launch" in OFF else 8,
    loss="mse",
)
ready = "data" in OFF
data = Ready(Windows(), 24) if ready else Windows()
training = TrainingArguments(
    "patches",
    max_steps=1_000_000,
    per_device_train_batch_size=1 if ready else 24,
    logging_strategy="steps",
    logging_steps=100 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    lr_scheduler_type="cosine",
    warmup_steps=500,
    save_strategy="no",
    report_to="none",
    label_names=["future_values"],
)
collate = {"data_collator": lambda rows: rows[0]} if ready else {}
Trainer(model=PatchTSTForPrediction(config), args=training, train_dataset=data, **collate).train()
