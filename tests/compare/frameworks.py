"""Training programs of frameworks, and edits of each with the right answer by construction (traps.py)."""

from __future__ import annotations

from tests.compare.traps import Trap, edit_text

HUGGING_FACE = """
import torch
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
x = torch.randn(512, 16)
y = x[:, :3].sum(1)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))

    def forward(self, x, labels):
        out = self.layers(x)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

arguments = TrainingArguments(
    "out", per_device_train_batch_size=32, num_train_epochs=EPOCHS, learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no",
    logging_steps=50, disable_tqdm=True, seed=42,
)
Trainer(Model(), arguments, train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y)]).train()
"""
LIGHTNING = """
import logging, warnings
import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
torch.manual_seed(0)
x = torch.randn(512, 16)
y = x[:, :3].sum(1, keepdim=True)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

trainer = lightning.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 16)
y = x[:, :3].sum(1, keepdim=True)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(EPOCHS):
    for a, b in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
COMPILED = """
import torch

torch.manual_seed(0)
x = torch.randn(320, 16)
y = x[:, :3].sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = torch.compile(model)
for epoch in range(EPOCHS):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(run(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
"""
PROGRAMS = {"Hugging Face": HUGGING_FACE, "Lightning": LIGHTNING, "Accelerate": ACCELERATE, "torch.compile": COMPILED}
TRAPS = {
    "Hugging Face": {
        "no log lines": Trap({"logging_steps=50": 'logging_strategy="no"'}),
        "half of the batch, accumulated": Trap(
            {"per_device_train_batch_size=32": "per_device_train_batch_size=16, gradient_accumulation_steps=2"}, "rounding"
        ),
        "half of the batch": Trap({"per_device_train_batch_size=32": "per_device_train_batch_size=16"}, "changed", 4),
        "another seed of the trainer": Trap({"seed=42": "seed=43"}, "changed", 4, {"samples"}),
    },
    "Lightning": {
        "gradients set to zero": Trap({"    def configure": "    def optimizer_zero_grad(self, epoch, index, optimizer):\n        "
                                       "optimizer.zero_grad(set_to_none=False)\n\n    def configure"}),
        "bfloat16": Trap({'accelerator="cpu"': 'accelerator="cpu", precision="bf16-mixed"'}, "changed", 4),
        "a part of the batches": Trap({'accelerator="cpu"': 'accelerator="cpu", limit_train_batches=12'}, "changed", 4, {"samples"}),
    },
    "Accelerate": {
        "two batches in one": Trap({"batch_size=16": "batch_size=32", ", gradient_accumulation_steps=2": ""}, "rounding"),
        "fused optimizer": Trap({"lr=1e-3": "lr=1e-3, fused=True"}, "rounding"),
        "no accumulation": Trap({", gradient_accumulation_steps=2": ""}, "changed", 4),
    },
    "torch.compile": {
        "not compiled": Trap({"torch.compile(model)": "model"}, "rounding"),
        "another loss, compiled": Trap({"mse_loss(": "smooth_l1_loss("}, "changed", 4),
    },
}  # fmt: skip


def framework_program(name: str, trap: str | None = None, *, epochs: int = 4, seed: int = 0) -> str:
    """Return a program, edited by one of its traps."""
    text = edit_text(PROGRAMS[name], TRAPS[name][trap].edit if trap is not None else {})
    return text.replace("EPOCHS", str(epochs)).replace("manual_seed(0)", f"manual_seed({seed})")
