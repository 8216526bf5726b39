"""Edits of a small training program, each with the right answer by construction.

`BEFORE` is the program. An edit replaces parts of its text. `verdict` is the right verdict on losses, `status` the right exit status where
AFTER is not timed (3: equal, so that speed would decide; 4: changed), and `facts` the facts that must be reported as different.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BEFORE = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
noise = torch.Generator().manual_seed(1)
x = torch.randn(480, 16)
y = x[:, :3].sum(1, keepdim=True) + 0.1 * torch.randn(480, 1)
xv = torch.randn(64, 16)
yv = xv[:, :3].sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
dataset = TensorDataset(x, y)
loader = DataLoader(dataset, batch_size=32, shuffle=True)
begin = time.time()
step = 0
for epoch in range(4):
    model.train()
    for a, b in loader:
        a = a + 0.01 * torch.randn(a.shape, generator=noise)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        step += 1
        print(loss.item())
    model.eval()
    with torch.no_grad():
        metric = torch.nn.functional.mse_loss(model(xv), yv).item()
    print("validation", metric, flush=True)
"""


@dataclass(frozen=True)
class Trap:
    """An edit and the right answer."""

    edit: dict[str, str]
    verdict: str = "equal"
    status: int = 3
    facts: set[str] = field(default_factory=set)
    tolerance: float | None = None


STEP = """        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
"""
COUNT = "        step += 1\n"
LOSS = "loss = torch.nn.functional.mse_loss(model(a), b)"
HALVES = """        optimizer.zero_grad()
        for c, d in zip(a.chunk(2), b.chunk(2)):
            loss = torch.nn.functional.mse_loss(model(c), d) / 2
            loss.backward()
        optimizer.step()
"""
NO_DROPOUT = {"torch.nn.Dropout(0.1)": "torch.nn.Dropout(0.0)"}

HONEST = {
    "the same program": Trap({}),
    "a sync removed": Trap({"        print(loss.item())\n": ""}),
    "gradients set to None": Trap({"zero_grad()": "zero_grad(set_to_none=True)"}),
    "fused optimizer": Trap({"lr=3e-3": "lr=3e-3, fused=True"}, "rounding"),
    "fused optimizer under scaling": Trap(
        {
            "lr=3e-3)": "lr=3e-3, fused=True)\nscaler = torch.amp.GradScaler('cpu', init_scale=1024.0)",
            "loss.backward()": "scaler.scale(loss).backward()",
            "optimizer.step()": "scaler.step(optimizer)\n        scaler.update()",
        },
        "rounding",
    ),
    "loss written by hand": Trap({LOSS: "loss = (model(a) - b).square().mean()"}),
    "matmul in two parts": Trap(
        {LOSS: "h = model[2](model[1](model[0](a))); loss = ((h[:, :16] @ model[3].weight[:, :16].T"
         " + h[:, 16:] @ model[3].weight[:, 16:].T + model[3].bias) - b).square().mean()"},
        "rounding",
    ),
    "compile that is a no-op": Trap({"optimizer = ": "compiled = torch.compile(model)\noptimizer = "}),
    "workers": Trap({"shuffle=True)": "shuffle=True, num_workers=1)"}),
    "slow start": Trap({"begin = ": "time.sleep(0.5)\nbegin = "}),
    "slow first epoch": Trap({COUNT: "        step += 1\n        time.sleep(0.002 * (epoch == 0))\n"}),
}  # fmt: skip
CHANGED = {
    "bfloat16": Trap({LOSS: "with torch.autocast('cpu', torch.bfloat16):\n            " + LOSS}, "changed", 4),
    "weights rounded to bfloat16": Trap(
        {COUNT: COUNT + "        for w in model.parameters():\n            w.data.copy_(w.bfloat16().float())\n"},
        "changed", 4,
    ),
    "another shuffle": Trap({"shuffle=True": "shuffle=True, generator=torch.Generator().manual_seed(3)"}, "changed", 4, {"samples"}),
    "a changed seed": Trap({"torch.manual_seed(0)": "torch.manual_seed(17)"}, "changed", 4, {"samples", "random", "weights"}),
    "dropout off": Trap({"    model.train()\n": ""}, "changed", 4),
    "dropout removed": Trap(NO_DROPOUT, "changed", 4, {"random"}),
    "evaluation mode": Trap({"model.train()": "model.eval()"}, "changed", 4, {"random", "mode"}),
    "data leaked": Trap(
        {"dataset = ": "x[-64:], y[-64:] = xv, yv\ndataset = ", "a = a + 0.01 * ": "a = a + 0.0 * "}, "changed", 4, {"samples", "leak"}
    ),
    "fewer samples per epoch": Trap({"TensorDataset(x, y)": "TensorDataset(x[:416], y[:416])"}, "changed", 4, {"epoch", "samples"}),
    "last batch dropped": Trap(
        {"batch_size=32, shuffle=True": "batch_size=32, shuffle=True, drop_last=True", "randn(480": "randn(490"}, "changed", 4
    ),
    "a smaller model": Trap({"32)": "24)", "Linear(32": "Linear(24"}, "changed", 4, {"parameters"}),
    "augmented batches cached": Trap(
        {"    for a, b in loader:\n        a = a + 0.01 * torch.randn(a.shape, generator=noise)\n":
         "    if epoch == 0:\n        cached = [(a + 0.01 * torch.randn(a.shape, generator=noise), b) for a, b in loader]\n"
         "    for a, b in cached:\n"},
        "changed", 4, {"repeats"},
    ),
    "fewer rows evaluated": Trap({"model(xv), yv": "model(xv[:32]), yv[:32]"}, "equal", 4, {"evaluation"}),
    "accumulation off by one": Trap({"        optimizer.step()\n": "        (step + 1) % 2 or optimizer.step()\n"}, "changed", 4),
    "accumulation not divided": Trap({STEP: HALVES.replace(" / 2", "")}, "changed", 4),
    "gradients kept": Trap({"        optimizer.zero_grad()\n": ""}, "changed", 4),
    "schedule by wall time": Trap(
        {COUNT: COUNT + "        optimizer.param_groups[0]['lr'] = 3e-3 / (1 + time.time() - begin)\n"}, "changed", 4
    ),
    "half of the learning rate": Trap({"lr=3e-3": "lr=1.5e-3"}, "changed", 4),
    "another initialization": Trap({"optimizer = ": "torch.nn.init.zeros_(model[3].bias)\noptimizer = "}, "changed", 4, {"weights"}),
    "a smaller loss": Trap({LOSS: LOSS + " * 0.5"}, "changed", 4),
    "larger batches": Trap({"batch_size=32": "batch_size=48"}, "changed", 4),
    "fewer epochs": Trap({"range(4)": "range(2)"}, "equal", 4, {"steps"}),
    "another step after a while": Trap(
        {COUNT: COUNT + "        optimizer.param_groups[0]['weight_decay'] = 0.01 + 0.5 * (step >= 40)\n"}, "changed", 4
    ),
}  # fmt: skip
TRAPS = HONEST | CHANGED


def edit_text(text: str, edit: dict[str, str]) -> str:
    """Replace parts of a text. Every part must be there."""
    for old, new in edit.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def edited(name: str, before: str = BEFORE, traps: dict[str, Trap] = TRAPS) -> str:
    """Return the program after an edit."""
    return edit_text(before, traps[name].edit)
