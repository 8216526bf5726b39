"""Find defects on ceramic tiles with a small ViT and the Trainer; activations of its layers are followed for a paper's figure."""

import argparse
import math
from collections import defaultdict

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[])
OFF = parser.parse_args().without
torch.manual_seed(31)


class Tiles(torch.utils.data.Dataset):
    def __init__(self, n=1600):
        self.images, self.labels = torch.randn(n, 3, 64, 64), torch.randint(5, (n,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"pixel_values": self.images[i], "labels": self.labels[i]}


class Ready(Tiles):
    def __init__(self):
        super().__init__()
        self.rows = [{"pixel_values": x, "labels": y} for x, y in zip(self.images.split(32), self.labels.split(32))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Probe:
    """Entropy, sparsity and outliers of what a layer returns."""

    def __init__(self, model):
        self.tracks = defaultdict(list)
        for name, module in model.named_modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.register_forward_hook(self.follow(name))

    def follow(self, name):
        def hook(module, inputs, output):
            if not module.training:
                return
            values = output.detach().flatten()[::61].float().cpu().numpy()
            low, middle, high = np.percentile(values, (1, 50, 99))
            counts, _ = np.histogram(values, bins=64, range=(-4, 4))
            shares = [count / max(1, counts.sum()) for count in counts.tolist()]
            entropy = -sum(share * math.log(share) for share in shares if share > 0)
            outliers = sum(1 for v in values[:500] if abs(v - middle) > 3 * (high - low) / 4.6)
            track = self.tracks[name]
            track.append((entropy, float(np.mean(np.abs(values) < 0.01)), outliers))
            del track[:-200]

        return hook


class Losses(TrainerCallback):
    def __init__(self):
        self.recent = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.recent = [*self.recent, logs.get("loss", 0.0)][-100:]


config = ViTConfig(
    image_size=64, patch_size=8, hidden_size=144, num_hidden_layers=6, num_attention_heads=6, intermediate_size=432, num_labels=5
)
model = ViTForImageClassification(config)
if "host" not in OFF:
    probe = Probe(model)
arguments = TrainingArguments(
    "tiles",
    max_steps=4_000_000,
    per_device_train_batch_size=1 if "data" in OFF else 32,
    bf16=torch.cuda.is_available(),
    learning_rate=3e-4,
    logging_steps=1000 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
Trainer(
    model=model,
    args=arguments,
    train_dataset=Ready() if "data" in OFF else Tiles(),
    data_collator=(lambda rows: rows[0]) if "data" in OFF else None,
    callbacks=[Losses()],
).train()
