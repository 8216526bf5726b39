"""Does `stoker diagnose --apply` write patches on a GPU: which fixes, how much they gain, and how long it takes?

Four programs as users write them, each with something that a known edit improves, on whatever device torch has. Each is diagnosed as
from a shell, its patch is checked by `git apply`, applied to a copy, and the copy is run once more. Results are written after each program:

    python -m benchmarks.diagnose.gpu_patches --budget 60 --out patches.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import record

QUESTION = "Which patches does `stoker diagnose --apply` write, what do they gain, and how long does it take?"
LOOP = """
for epoch in range(100_000):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
"""
HEAD = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
"""
PROGRAMS = {
    # float32 matmuls: TF32 or autocast, and compiling
    "matmuls": HEAD
    + """
data = TensorDataset(torch.randn(SMALL * 512, 1024), torch.randint(0, 10, (SMALL * 512,)))
loader = DataLoader(data, batch_size=SMALL * 256, shuffle=False)
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(DEPTH)), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
"""
    + LOOP,
    # convolutions: cudnn.benchmark, TF32 and autocast
    "convolutions": HEAD
    + """
data = TensorDataset(torch.randn(SMALL * 32, 3, 64, 64), torch.randint(0, 10, (SMALL * 32,)))
loader = DataLoader(data, batch_size=SMALL * 16)
layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
for _ in range(DEPTH):
    layers += [nn.Conv2d(64, 64, 5, padding=2), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
"""
    + LOOP,
    # many small tensors: a fused optimizer, compiling
    "small_layers": HEAD
    + """
data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=512)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8 * DEPTH)), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
"""
    + LOOP,
    # large batches from memory that is not pinned
    "copies": HEAD
    + """
class Blocks(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(SMALL, 4, 1 << 20)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.x[index % SMALL], torch.zeros(4, dtype=torch.long)

loader = DataLoader(Blocks(), batch_size=None)
model = nn.Linear(1 << 20, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
"""
    + LOOP,
}


def apply_patch(name: str, *, small: bool, budget: float) -> dict[str, Any]:
    """Diagnose one program with `--apply`, and use its patch."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        text = PROGRAMS[name].replace("SMALL", "1" if small else "8").replace("DEPTH", "2" if small else "8")
        (folder / "train.py").write_text(text)
        command = [
            sys.executable,
            "-m",
            "stoker",
            "diagnose",
            "--json",
            "--apply",
            "faster.patch",
            "--budget",
            str(budget),
        ]
        begin = time.perf_counter()
        done = subprocess.run([*command, "train.py"], cwd=folder, capture_output=True, text=True, check=False)
        row: dict[str, Any] = {"seconds": round(time.perf_counter() - begin, 1), "code": done.returncode}
        row["runs"] = [line for line in done.stderr.splitlines() if line.startswith("stoker: ") and " (run " in line]
        if not done.stdout:
            return row | {"error": done.stderr[-500:]}
        found = json.loads(done.stdout)
        patch = found["patch"]
        row |= {"verdict": found["verdict"], "why": found["why"], "fixes": patch["fixes"], "left_out": patch["left_out"]}
        if patch["file"] is None:
            return row
        row |= {key: patch["tried"][key] for key in ("speedup", "low", "high", "losses")}
        row["patch"] = (folder / "faster.patch").read_text().splitlines()
        row["is unchanged"] = (folder / "train.py").read_text() == text
        subprocess.run(["git", "apply", "faster.patch"], cwd=folder, check=True)
        row["compiles"] = bool(compile((folder / "train.py").read_text(), "train.py", "exec"))
        return row


def main() -> None:
    """Patch the programs."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS), metavar="NAME", help="Of the programs; all by default.")
    parser.add_argument("--small", action="store_true", help="Small models, no result file.")
    parser.add_argument("--budget", type=float, default=90.0, help="Seconds for the trials of one program.")
    parser.add_argument("--out", type=Path, help="The result file, instead of benchmarks/results/gpu_patches.json.")
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in asked.names:
        rows[name] = apply_patch(name, small=asked.small, budget=asked.budget)
        print(json.dumps({name: rows[name]}), flush=True)
        if not asked.small:
            record.save("gpu_patches", QUESTION, {"programs": rows}, path=asked.out, show=False)


if __name__ == "__main__":
    main()
