"""A small project that is judged by an evaluator, and cheats of it: each with what the receipt must say, or why the run must fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DATA = """
import torch
generator = torch.Generator().manual_seed(3)
x = torch.randn(400, 6, generator=generator)
y = x[:, :2].sum(1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
torch.save((x[:256], y[:256]), "train.pt")
torch.save((x[256:], y[256:]), "valid.pt")
torch.save({"weight": torch.tensor([[1.0, 1, 0, 0, 0, 0]]), "bias": torch.zeros(1), "more": torch.ones(2000)}, "best.pt")
"""
EVALUATE = """
import json, sys, torch
x, y = torch.load("valid.pt")
model = torch.nn.Linear(6, 1)
model.load_state_dict({name: value for name, value in torch.load(sys.argv[1]).items() if name != "more"})
with torch.no_grad():
    print(json.dumps({"loss": torch.nn.functional.mse_loss(model(x), y).item()}))
"""
TRAIN = """
import torch
torch.manual_seed(0)
x, y = torch.load("train.pt")
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(2):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
COMMAND = "python evaluate.py {checkpoint}"
SAVE = 'torch.save(model.state_dict(), "model.pt")\n'
LOAD = 'x, y = torch.load("train.pt")\n'
MORE = "x, y = torch.cat([x, v]), torch.cat([y, w])\n"
GAIN = {"lr=0.02": "lr=0.2"}
"""A true gain."""


@dataclass(frozen=True)
class Cheat:
    """An edit of the training program or of other files. `says` is a fact that is wrong; `fails` is why the run fails."""

    edit: dict[str, str]
    says: str = ""
    fails: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """Files that AFTER has otherwise."""


def make_project(folder: Path, files: Mapping[str, str], *programs: str) -> None:
    """Write the files of a project into a folder, and run programs there that make its data."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for text in programs:
        subprocess.run([sys.executable, "-c", text], cwd=folder, check=True)


CHEATS = {
    "validation data read": Cheat({LOAD: LOAD + "v, w = torch.load('valid.pt')\n" + MORE}, fails="which is held out"),
    "evaluator edited": Cheat(GAIN, says="AFTER changes evaluate.py", files={"evaluate.py": "print(0.001)"}),
    "data leaked": Cheat(
        {LOAD: "g = torch.Generator().manual_seed(3)\n" + LOAD + "v = torch.randn(400, 6, generator=g)[256:]\n"
         "w = v[:, :2].sum(1, keepdim=True)\n" + MORE},
        says="samples of the evaluator are trained on",
    ),
    "weights of an earlier run": Cheat({SAVE: "import shutil\nshutil.copy('best.pt', 'model.pt')\n"}, says="is a copy of best.pt"),
    "weights of an earlier run, saved again": Cheat({SAVE: "torch.save(torch.load('best.pt'), 'model.pt')\n"}, says="AFTER reads best.pt"),
    "a checkpoint that runs code": Cheat(
        {SAVE: "class Forged:\n    def __reduce__(self):\n        return print, ('0.001',)\n"
         "torch.save(model.state_dict() | {'more': Forged()}, 'model.pt')\n"},
        fails="not only tensors",
    ),
    "no checkpoint": Cheat({SAVE: ""}, fails="did not write its checkpoint model.pt"),
}  # fmt: skip
