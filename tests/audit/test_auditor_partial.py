"""A reference that was read in part: what samples beyond that part can explain is no fault, and what they cannot is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.audit.samples import of
from tests.harness import num_examples
from torch.utils.data import DataLoader, TensorDataset

from stoker import audit
from stoker.audit import samples
from stoker.audit.auditor import AuditReport


def faults(report: AuditReport) -> list[str]:
    return [found.kind for found in report.checks if found.severity == "fault"]


def ratings(num: int, users: int, items: int, seed: int = 0) -> TensorDataset:
    """A user, what it was shown, and whether it liked that."""
    random = torch.Generator().manual_seed(seed)
    numbers = (torch.randint(0, high, (num,), generator=random) for high in (users, items, 2))
    return TensorDataset(*numbers)


def shuffled(data: TensorDataset, seed: int = 0) -> DataLoader[Any]:
    return DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(seed))


@given(
    num=st.integers(2, 1500),
    users=st.sampled_from([1, 2, 5, 30, 300, 3000]),
    items=st.sampled_from([1, 3, 40, 1000]),
    limit=st.integers(1, 1600),
    max_batches=st.sampled_from([None, 4, 40]),
    seed=st.integers(0, 2**32 - 1),
)
@example(num=1000, users=5, items=1, limit=5, max_batches=None, seed=0)
@example(num=1400, users=700, items=1000, limit=30, max_batches=40, seed=0)
@settings(max_examples=num_examples(120), deadline=None)
def test_what_is_right_is_never_blamed_however_little_was_read(
    num: int, users: int, items: int, limit: int, max_batches: int | None, seed: int
) -> None:
    loader = shuffled(ratings(num, users, items, seed), seed)
    assert faults(audit(loader, epochs=2, reference_limit=limit, max_batches=max_batches)) == []


def test_negative_control_anchors_that_are_trusted_accuse_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = shuffled(ratings(1400, 700, 1000))
    assert faults(audit(loader, reference_limit=30)) == []
    monkeypatch.setattr(samples.ReferenceIndex, "again_by_chance", lambda self, num_rows: 0.0)
    monkeypatch.setattr(samples.ReferenceIndex, "mixed_by_chance", lambda self, unmatched: 0.0)
    assert faults(audit(loader, reference_limit=30)) == ["seen twice", "mixed rows"]


def test_what_samples_that_were_not_read_cannot_explain_is_a_fault() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(4000, 3, generator=random), torch.randint(0, 3, (4000,), generator=random)
    data = TensorDataset(x, y)
    for wrong, limit in (y.roll(1), 500), (torch.where(torch.arange(4000) % 5 == 0, y.roll(7), y), 2000):
        report = audit(shuffled(TensorDataset(x, wrong)), reference=data, reference_limit=limit)
        assert faults(report) == ["mixed rows"]
    order = torch.cat([torch.randperm(4000, generator=random), torch.randperm(4000, generator=random)[:1000]])
    again = audit([data[order[i : i + 16]] for i in range(0, len(order), 16)], reference=data, reference_limit=2000)
    assert faults(again) == ["seen twice"]
    assert 200 < of(again, "seen twice").count < 600


def test_a_leak_is_found_in_a_part() -> None:
    x = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    train, valid = shuffled(TensorDataset(x[:3000])), shuffled(TensorDataset(x[2500:]))
    assert faults(audit(train, reference_limit=2000, apart_from=valid)) == ["shared samples"]
