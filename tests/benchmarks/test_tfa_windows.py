"""The three ways to cut TFA's windows serve the same samples."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.before.tfa_windows import EfficientSeqWindows, SeqWindows, WindowDataset

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20, dtype=np.float32).reshape(20, 1)


def test_the_loop_the_view_and_the_plain_dataset_agree() -> None:
    plain = WindowDataset(X, Y, length=5)
    view = EfficientSeqWindows(X, Y, length=5, start=0, end=19)
    loop = [
        (x, y)
        for xs, ys in SeqWindows(X, Y, length=5, start=0, end=19, batch=4)
        for x, y in zip(xs.clone(), ys.clone(), strict=True)
    ]
    assert len(plain) == len(view) == len(loop) == 16
    for i in range(16):
        for x, y in (plain[i], view[i], loop[i]):
            assert torch.equal(x, torch.from_numpy(X[i : i + 5]))
            assert y.tolist() == [i + 4]
