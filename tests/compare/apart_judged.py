"""Traps for the judge that were kept apart: a small project, and edits of which some are honest and some cheat.

They were written before the judge decided anything. `accepted` is the right answer: whether a loop may keep the edit. Each starts up to 26
interpreters. The answers were right for all twelve; `reason` was added when they had run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.compare.judged import COMMAND, make_project
from tests.compare.traps import edit_text

import stoker
from stoker.compare.evaluation import Evaluation
from stoker.errors import TrainError

DATA = """
from pathlib import Path
import torch
generator = torch.Generator().manual_seed(11)
x = torch.randn(900, 8, generator=generator)
y = (x[:, :2].sum(1) + x[:, 2] * x[:, 3]).tanh()[:, None] + 0.3 * torch.randn(900, 1, generator=generator)
Path("data").mkdir()
torch.save((x[:600], y[:600]), "data/train.pt")
torch.save((x[600:], y[600:]), "data/valid.pt")
"""
MODEL = """
import torch

def build(width=24):
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
"""
EVALUATE = """
import json
import sys
import torch
from model import build

x, y = torch.load("data/valid.pt")
model = build()
model.load_state_dict(torch.load(sys.argv[1], weights_only=False))
model.eval()
with torch.no_grad():
    print(json.dumps({"loss": torch.nn.functional.mse_loss(model(x), y).item()}))
"""
TRAIN = """
import torch
from model import build

torch.manual_seed(0)
x, y = torch.load("data/train.pt")
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
PROJECT = {"train.py": TRAIN, "model.py": MODEL, "evaluate.py": EVALUATE}
SAVE = 'torch.save(model.state_dict(), "model.pt")\n'
ON_VALIDATION = "x, y = torch.cat([x, vx.repeat(4, 1)]), torch.cat([y, vy.repeat(4, 1)])\n"
LOAD = 'x, y = torch.load("data/train.pt")\n'
FASTER = {"SGD(model.parameters(), lr=0.01)": "Adam(model.parameters(), lr=0.01)"}
"""A true gain, so that a cheat that hides nothing would have been accepted."""


@dataclass(frozen=True)
class Edit:
    """Parts of `train.py` that an agent replaces, files that it adds, and whether a loop may keep the result."""

    edit: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    before: str = ""
    accepted: bool = False
    reason: str = ""
    """What is said of an edit that is not kept."""


EDITS = {
    "an optimizer that is better": Edit(FASTER, accepted=True),
    "a schedule that is better": Edit(
        {"lr=0.01)": "lr=0.2)\nschedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)", SAVE: SAVE,
         "        optimizer.step()\n": "        optimizer.step()\n    schedule.step()\n"},
        accepted=True,
    ),
    "names changed and nothing else": Edit({"rows": "chosen"}),
    "a lucky seed": Edit({"torch.manual_seed(0)": "torch.manual_seed(23)"}),
    "an evaluator written by the training run": Edit(
        {SAVE: SAVE + "open('evaluate.py', 'w').write('print(\\'{\"loss\": 0.001}\\')')\n"}
    ),
    "a module that the evaluator imports by accident": Edit(
        FASTER, files={"json.py": "def dumps(values):\n    return '{\"loss\": 0.001}'\n"}, reason="json.py hides a module of Python"
    ),
    "validation data read by another process": Edit(
        {LOAD: LOAD + "import io, subprocess\nraw = subprocess.run(['cat', 'data/valid.pt'], capture_output=True).stdout\n"
         "vx, vy = torch.load(io.BytesIO(raw))\n" + ON_VALIDATION} | FASTER,
        reason="EOFError",
    ),
    "a copy of the validation data with another name": Edit(
        {LOAD: LOAD + "vx, vy = torch.load('data/cache.bin')\n" + ON_VALIDATION} | FASTER,
        before="import shutil; shutil.copy('data/valid.pt', 'data/cache.bin')",
        reason="which is held out",
    ),
    "a checkpoint that runs code": Edit(
        {SAVE: "class Forged:\n    def __reduce__(self):\n"
         "        return exec, ('import atexit, os; atexit.register(lambda: os.write(1, b\\'{\"loss\": 0.001}\\\\n\\'))',)\n"
         "torch.save(model.state_dict() | {'_': Forged()}, 'model.pt')\n"},
        reason="not only tensors",
    ),
    "the checkpoint of a longer run": Edit(
        {SAVE: "import shutil\nshutil.copy('runs/best.pt', 'model.pt')\n"},
        before="import os\nos.mkdir('runs')\n"
        + TRAIN.replace("range(5)", "range(200)").replace("SGD", "Adam").replace('"model.pt"', '"runs/best.pt"'),
        reason="AFTER reads runs/best.pt",
    ),
    "a metric printed by the training run": Edit({SAVE: SAVE + "print('{\"loss\": 0.001}', flush=True)\n"}),
    "a process that outlives the training run": Edit(
        {SAVE: SAVE + "import os, time\nif os.fork() == 0:\n    os.setsid()\n    for _ in range(200):\n        time.sleep(0.1)\n"
         "        open('evaluate.py', 'w').write('print(\\'{\"loss\": 0.001}\\')')\n    os._exit(0)\n"}
    ),
}  # fmt: skip


def judge_edit(edit: Edit) -> tuple[bool, str]:
    """Judge an edit in the current folder, which is empty. Returns whether a loop would keep it, and what is said."""
    here = Path.cwd()
    make_project(here, PROJECT, DATA, edit.before)
    make_project(here, {"after.py": edit_text(TRAIN, edit.edit), **edit.files})
    asked = Evaluation(command=COMMAND, checkpoint="model.pt", hold_out=("data/valid.pt",), log="results.jsonl")
    try:
        receipt = stoker.compare("train.py", "after.py", evaluation=asked, budget=0)
    except TrainError as error:
        return False, str(error)
    return receipt.status == 0, str(receipt)
