"""What is kept of each step."""

import json
import math
from collections import Counter
from pathlib import Path

import torch


class Nothing:
    def update(self, step, loss, out, y, model):
        pass


class Confusion:
    """Right and wrong answers, by class."""

    def __init__(self, detail):
        self.detail, self.counts = detail, Counter()

    def update(self, step, loss, out, y, model):
        answers, truths = out.tolist(), y.tolist()
        for threshold in range(self.detail):
            edge = threshold / self.detail
            for answer, truth in zip(answers, truths, strict=True):
                self.counts[threshold, answer > edge, truth > edge] += 1


class Journal:
    """One line of JSON a step, with the predictions and the size of each parameter."""

    def __init__(self, detail):
        self.detail = detail
        self.file = Path("journal.jsonl").open("w")  # noqa: SIM115 (open for as long as the training runs)

    def update(self, step, loss, out, y, model):
        rows = []
        for _ in range(self.detail):
            pairs = zip(out.tolist(), y.tolist(), strict=True)
            rows.append([{"answer": round(a, 4), "truth": round(t, 4), "error": abs(a - t)} for a, t in pairs])
        self.file.write(json.dumps({"step": step, "loss": float(loss), "rows": rows}, indent=1) + "\n")
        self.file.flush()


class Quantiles:
    """Quantiles of the last errors."""

    def __init__(self, detail):
        self.detail, self.errors = detail, [0.0] * 2000

    def update(self, step, loss, out, y, model):
        self.errors = (self.errors + [abs(a - t) for a, t in zip(out.tolist(), y.tolist(), strict=True)])[-2000:]
        self.seen = []
        for part in range(1, self.detail + 1):
            ordered = sorted(self.errors, key=lambda e: (e, part))
            self.seen.append(ordered[len(ordered) * part // (self.detail + 1)])


class Histogram:
    """A histogram of the weights."""

    def __init__(self, detail):
        self.detail = detail

    def update(self, step, loss, out, y, model):
        counts = Counter()
        for parameter in model.parameters():
            for value in parameter.detach().flatten()[: self.detail].tolist():
                counts[math.floor(math.log10(abs(value) + 1e-9))] += 1
        self.counts = counts


class Items:
    """The loss and the norm of each gradient, as numbers."""

    def __init__(self, detail):
        self.norms = {}

    def update(self, step, loss, out, y, model):
        self.loss = loss.item()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.norms[name] = parameter.grad.norm().item()


class Finite:
    """Stops as soon as the output of a layer, or a gradient, is NaN or Inf."""

    def __init__(self, detail):
        self.watches = False

    def check(self, module, inputs, out):
        if isinstance(out, torch.Tensor) and not torch.isfinite(out).all():
            raise FloatingPointError(type(module).__name__)

    def update(self, step, loss, out, y, model):
        if not self.watches:
            for module in model.modules():
                if not list(module.children()):
                    module.register_forward_hook(self.check)
            self.watches = True
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                raise FloatingPointError(name)


def build(args):
    """The metrics that the arguments ask for."""
    kinds = {
        "confusion": Confusion,
        "journal": Journal,
        "quantiles": Quantiles,
        "histogram": Histogram,
        "items": Items,
        "finite": Finite,
    }
    return kinds[args.metrics](args.detail) if args.metrics != "none" else Nothing()
