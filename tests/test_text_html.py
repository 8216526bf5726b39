"""What notebooks show of stores, feeds, results and findings: names from data are plain text."""

from __future__ import annotations

import numpy as np
import torch

import stoker
from stoker.diagnose.finding import Finding

HOSTILE = "<script>alert(1)</script>\x1b[31m"


def test_stores_feeds_results_and_findings_have_a_form_for_notebooks() -> None:
    store = stoker.Store.from_arrays(**{"a<b": np.arange(12.0, dtype=np.float32).reshape(2, 6)})
    assert '<td style="text-align: left">a&lt;b</td>' in store._repr_html_()
    feed = stoker.Feed(store, stoker.Windows(4), batch_size=2)
    assert feed._repr_html_().startswith("<pre>feed of ")
    model = torch.nn.Linear(3, 1)
    batches = [(torch.ones(8, 3), torch.zeros(8, 1))]
    trainer = stoker.Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), progress=False)
    shown = trainer.fit(batches, valid=batches, epochs=1)._repr_html_()
    assert "finished after 1 steps" in shown
    assert "val_loss " in shown
    finding = Finding(verdict="none", confidence="low", spread=0.3, why=f"only 5 steps were measured {HOSTILE}")
    assert "NO VERDICT" in finding._repr_html_()
    assert "<script" not in finding._repr_html_()
