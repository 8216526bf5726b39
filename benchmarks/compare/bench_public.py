"""Are receipts of public training programs right? Three honest and three bad edits of each.

    python -m benchmarks.compare.bench_public --nanogpt CLONE --ts2vec CLONE

A clone is a folder or a git directory of https://github.com/karpathy/nanoGPT and https://github.com/zhihanyue/ts2vec. The programs are
unchanged, small by their own options, and train on made data. Results are compared, not speed.
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from benchmarks.record import save
from stoker.compare.sides import Version

QUESTION = "Are receipts of public training programs right?"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """An edit of a file, and the right answer: the verdicts on losses that are right, and the exit status without a comparison of speed."""

    name: str
    file: str
    old: str
    new: str
    losses: tuple[str, ...] = ("changed",)
    status: int = 4
    facts: set[str] = field(default_factory=set)


NANOGPT = [
    Edit(
        name="batches by one index", file="train.py", losses=("equal",), status=3,
        old="x = torch.stack([torch.from_numpy((data[i:i+block_size]).astype(np.int64)) for i in ix])",
        new="x = torch.from_numpy(data[ix.numpy()[:, None] + np.arange(block_size)].astype(np.int64))",
    ),
    Edit(name="a log line every 10 steps", file="train.py", old="% log_interval == 0", new="% 10 == 0", losses=("equal",), status=3),
    Edit(
        name="fused AdamW", file="model.py", old="fused_available and device_type == 'cuda'", new="fused_available",
        losses=("equal", "rounding"), status=3,
    ),
    Edit(name="targets that are the inputs", file="train.py", old="data[i+1:i+1+block_size]", new="data[i:i+block_size]"),
    Edit(
        name="validation loss of training data", file="train.py", old="X, Y = get_batch(split)", new="X, Y = get_batch('train')",
        losses=("equal",), facts={"evaluation"},
    ),
    Edit(
        name="bfloat16", file="train.py", old="nullcontext() if device_type == 'cpu'",
        new="torch.autocast('cpu', torch.bfloat16) if device_type == 'cpu'",
    ),
]  # fmt: skip
TS2VEC = [
    Edit(name="no read of each loss", file="ts2vec.py", old="loss.item()", new="loss.detach()", losses=("equal",), status=3),
    Edit(
        name="fused AdamW", file="ts2vec.py", old="lr=self.lr)\n", new="lr=self.lr, fused=True)\n", losses=("equal", "rounding"), status=3,
    ),
    Edit(
        name="log-softmax by hand", file="models/losses.py", old="logits = -F.log_softmax(logits, dim=-1)",
        new="logits = logits.logsumexp(-1, keepdim=True) - logits", losses=("equal", "rounding"), status=3,
    ),
    Edit(name="the instance loss alone", file="models/losses.py", old="alpha=0.5", new="alpha=1.0"),
    Edit(name="no crops", file="ts2vec.py", old="crop_left = np.random.randint(ts_l - crop_l + 1)", new="crop_left = 0"),
    Edit(name="no shuffle", file="ts2vec.py", old="shuffle=True", new="shuffle=False", facts={"samples"}),
]  # fmt: skip
DRIVER = """
import numpy as np, torch
from ts2vec import TS2Vec
np.random.seed(0)
torch.manual_seed(0)
data = np.random.randn(64, 60, 1).cumsum(1)
TS2Vec(1, output_dims=16, hidden_dims=16, depth=3, device="cpu", batch_size=8).fit(data, n_iters=40)
"""
WORDS = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --eval_interval=20 --log_interval=1 --block_size=32 "
    "--batch_size=4 --n_layer=2 --n_head=2 --n_embd=32 --max_iters=40 --lr_decay_iters=40 --dropout=0.1 --dtype='float32'"
)


def unpack(clone: Path, folder: Path) -> None:
    """Write the files of the newest commit of a clone."""
    data = subprocess.run(["git", "-C", clone, "archive", "HEAD"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def prepare(program: str, folder: Path) -> tuple[str, list[str]]:
    """Write the data of a program. Returns its script and arguments."""
    if program == "ts2vec":
        (folder / "drive.py").write_text(DRIVER)
        return "drive.py", []
    place = folder / "data" / "shakespeare_char"
    for name in ("train", "val"):
        np.random.default_rng(0 if name == "train" else 1).integers(0, 60, 20_000).astype(np.uint16).tofile(place / f"{name}.bin")
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 60}))
    return "train.py", [word.replace("'", "") for word in WORDS.split()]


def judge(script: str, words: list[str], edit: Edit) -> dict[str, Any]:
    """Compare the program with its edited form, in the current folder."""
    path = Path(edit.file).absolute()
    text = path.read_text()
    if edit.old not in text:
        raise SystemExit(f"{edit.file} has no {edit.old!r}: expected another commit of the program.")
    version = Version(program=script, edits={str(path): text.replace(edit.old, edit.new).encode()}, title=edit.name)
    receipt = stoker.compare(script, version, words, budget=0)
    different = {fact.name for fact in receipt.facts if fact.same is False}
    right = receipt.losses.verdict in edit.losses and receipt.status == edit.status and edit.facts <= different
    return {
        "edit": edit.name,
        "right": right,
        "losses": receipt.losses.verdict,
        "status": receipt.status,
        "said": receipt.headline()[:200],
    }


def main() -> None:
    """Run the programs whose clones are given."""
    parser = argparse.ArgumentParser(description=QUESTION)
    for name in ("nanogpt", "ts2vec"):
        parser.add_argument(f"--{name}", type=Path, metavar="CLONE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Where the results go, instead of benchmarks/results.")
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    out = None if asked.out is None else asked.out.absolute()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for program, clone, edits in (("nanogpt", asked.nanogpt, NANOGPT), ("ts2vec", asked.ts2vec, TS2VEC)):
        if clone is None:
            continue
        clone = clone.absolute()
        with tempfile.TemporaryDirectory() as name:
            unpack(clone, Path(name))
            script, words = prepare(program, Path(name))
            os.chdir(name)
            results[program] = []
            for edit in edits:
                results[program].append(judge(script, words, edit))
                print(program, results[program][-1], file=sys.stderr, flush=True)
            os.chdir("/")
    answers = [answer for program in results.values() for answer in program]
    save("bench_public", QUESTION, {"right": sum(answer["right"] for answer in answers), "of": len(answers), **results}, path=out)


if __name__ == "__main__":
    main()
