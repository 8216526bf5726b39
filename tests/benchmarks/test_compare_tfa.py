"""The bench of TFA: both sides do the same work."""

from __future__ import annotations

import torch
from benchmarks import compare_tfa as bench
from benchmarks.before import tfa_loop as before


def test_their_loop_and_ours_are_compared_by_labels() -> None:
    threads = torch.get_num_threads()
    told: list[str] = []
    lines = list(bench.run(batch=8, rounds=1, device="cpu", report=told.append))
    assert [line.what for line in lines] == told == ["their model", "banded, one token a label"]
    assert all(line.is_rate and line.before[0] > 0 and line.after[0] > 0 for line in lines)
    assert float(lines[0].note.split()[-1]) < 1e-5
    assert torch.get_num_threads() == threads


def test_the_loop_of_the_authors_serves_each_window_once_and_uses_its_buffer_again() -> None:
    rows = torch.arange(12, dtype=torch.float32).reshape(6, 2).numpy()
    windows = before.SeqWindows(rows, rows[:, :1], length=3, start=2, end=5, batch=2)
    found = [(x.clone(), y.clone(), x.data_ptr()) for x, y in windows]
    assert [y[:, 0].tolist() for _, y, _ in found] == [[4.0, 6.0], [8.0, 10.0]]
    assert found[0][0][0, -1].tolist() == [4.0, 5.0]
    assert found[0][2] == found[1][2]
