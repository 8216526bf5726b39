"""Why a version is faster: counts and shares that differ, and a real program whose sync was removed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stoker.compare.sides import Version
from stoker.gate.budget import Counts, RunCounts, summarize
from stoker.gate.why import changed_counts, changed_shares, explain

ZEROS = Counts(
    ops=40, flops=0, syncs=0, h2d_copies=0, h2d_bytes=0, d2h_copies=0, d2h_bytes=0, allocations=9, allocated_bytes=10_000
)
PROGRAM = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.ones(8)
for x in torch.utils.data.DataLoader(Rows(), batch_size=10):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def run_of(**changes: int) -> RunCounts:
    return summarize([msgspec.structs.replace(ZEROS, **changes)] * 16, device="cpu", torch="2")


def test_counts_that_differ_are_said_with_the_lines_that_make_them() -> None:
    before = msgspec.structs.replace(run_of(syncs=2, ops=44), places={"train.py f: x": {"ops": 9}, "train.py f: y": {"ops": 4}})
    after = msgspec.structs.replace(run_of(), places={"faster.py f: x": {"ops": 9}})
    assert changed_counts(before, after) == ["per step: operations 44 -> 40, syncs 2 -> 0", "operations by line: -4 f: y"]


def test_negative_control_equal_steps_have_no_differences() -> None:
    assert changed_counts(run_of(), run_of(allocated_bytes=10_050)) == ["a step does the same in both"]
    assert changed_shares({"data": 0.4}, {"data": 0.42}) == []


def test_shares_that_differ_are_said_the_largest_first() -> None:
    shares = changed_shares({"data": 0.71, "sync": 0.1}, {"data": 0.03, "compute": 0.6})
    assert shares == ["shares of a step: data 71% -> 3%, compute 0% -> 60%, sync 10% -> 0%"]


def test_a_sync_that_was_removed_is_named(tmp_path: Path) -> None:
    before, after = tmp_path / "old.py", tmp_path / "new.py"
    before.write_text(PROGRAM)
    after.write_text(PROGRAM.replace("    print(loss.item())\n", ""))
    lines = explain(Version(program=str(before)), Version(program=str(after)))
    assert "syncs 1 -> 0" in lines[0]
    assert "print(loss.item())" in lines[1]
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)")
    assert "was not counted" in explain(Version(program=str(broken)), Version(program=str(after)))[0]
