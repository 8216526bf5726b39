"""Samples that the tests of the audit share, and how they look at its findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset

from stoker.audit.auditor import AuditReport
from stoker.audit.checks import AuditFinding

NUM = 400
X = torch.randn(NUM, 6, 2, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 2, (NUM,), generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, Y)
ALL = ("seen twice", "never seen", "mixed rows", "foreign rows", "order", "same order", "reused memory")


def of(audit: AuditReport, kind: str) -> AuditFinding:
    return next(check for check in audit.checks if check.kind == kind)


def passed(audit: AuditReport) -> set[str]:
    return {check.kind for check in audit.checks if check.severity == "passed"}


def batches_of(order: Any, size: int = 16) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for i in range(0, len(order), size):
        chosen = torch.as_tensor(order[i : i + size], dtype=torch.int64)
        yield X[chosen], Y[chosen]
