"""How fast does the recipe for tabular sequences train and generate on a GPU?

Needs a GPU and torch. Codes are random, which takes the same time as those of a table.

    --part train       events per second of whole epochs by `stoker.Trainer`, captured as CUDA graphs, sizes s and m
    --part before      one update of the usual formulation (a loop over sub-columns, eager) and of ours, interleaved
    --part generate    100,000 subjects with about 1,000,000 events, size m: to tensors and arrays of codes, and to a Parquet file
    --part flat        a table of 48,842 rows and 15 columns: seconds per epoch, and for 40 epochs
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stoker
from benchmarks.before.tabular_heads import PlainModel
from stoker import _disk
from stoker.recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, assemble, mean_events
from stoker.recipes.tabular.generation import generate_codes
from stoker.recipes.tabular.layout import ModelLayout, Size, make_layout
from stoker.recipes.tabular.model import TabularModel

QUESTION = "How fast does the recipe for tabular sequences train and generate on a GPU?"
EVENTS = [
    {"cat": 8}, {"cat": 30}, {"bin": 32, "fine": 33}, {"bin": 32, "fine": 33},
    {"start_year": 3, "start_month": 12, "start_day": 31, "start_hour": 24, "gap_bin": 33, "gap_fine": 33},
]  # fmt: skip
USERS = [{"cat": 4}, {"cat": 8}, {"bin": 80}]
ADULT = [{"bin": 74}, {"cat": 9}, {"bin": 32, "fine": 33}, {"cat": 16}, {"cat": 16}, {"cat": 7}, {"cat": 15}, {"cat": 6}, {"cat": 5},
         {"cat": 2}, {"bin": 120}, {"bin": 100}, {"bin": 97}, {"cat": 42}, {"cat": 2}]  # fmt: skip


class Setting:
    def __init__(self, device: str, *, small: bool) -> None:
        self.device, self.small = torch.device(device), small
        rng = np.random.default_rng(0)
        self.num_subjects = 400 if small else 40_000
        self.lengths = np.minimum(rng.geometric(1 / 20, self.num_subjects), 100)
        self.rng = rng

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def layout(self, size: Size) -> ModelLayout:
        return make_layout(EVENTS, context=USERS, max_length=100, median_length=14, size=size)

    def data(self, layout: ModelLayout, lengths: Any) -> EncodedSubjects:
        subs = layout.subs[layout.num_positions :]
        codes = np.stack([self.rng.integers(0, sub.num_classes, int(lengths.sum())) for sub in subs], 1).astype(np.int16)
        context = (
            np.stack([self.rng.integers(0, sub.num_classes, len(lengths)) for sub in layout.context], 1) if layout.context else None
        )
        return EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, context, self.device)


def fit(setting: Setting, layout: ModelLayout, lengths: Any, batch_size: int, epochs: int) -> dict[str, Any]:
    """Epochs by the trainer; the first two, with the capture of graphs, are reported on their own."""
    data = setting.data(layout, lengths)
    batches = SubjectBatches(data, layout, np.arange(len(lengths)), lengths=lengths, batch_size=batch_size, seed=0)
    whole = SubjectLoss(TabularModel(layout).to(setting.device), data, mean_events(lengths, 100))
    times = [time.perf_counter()]

    class Clock:
        def on_epoch_end(self, report: Any) -> None:
            times.append(time.perf_counter())

    on_gpu = setting.device.type == "cuda"
    trainer = stoker.Trainer(
        whole, lambda model, batch: model(batch), torch.optim.AdamW(whole.parameters(), lr=1e-3), fused=True,
        precision="tf32" if on_gpu else "fp32", graph=True if on_gpu else "auto", compile=False, callbacks=[Clock()], seed=0,
        progress=False,
    )  # fmt: skip
    result = trainer.fit(batches, epochs=epochs)
    seconds = np.diff(times)
    usual = float(np.median(seconds[2:])) if len(seconds) > 3 else float(seconds[-1])
    return {
        "subjects": len(lengths), "events": int(lengths.sum()), "batch_size": batch_size, "updates_per_epoch": len(batches),
        "seconds_first_epochs": [round(float(one), 3) for one in seconds[:2]], "seconds_per_epoch": round(usual, 4),
        "events_per_second": round(float(lengths.sum()) / usual), "seconds_in_all": round(float(times[-1] - times[0]), 2),
        "ms_per_update": round(1e3 * usual / len(batches), 3), "loss": result.metrics["loss"],
    }  # fmt: skip


def train(setting: Setting) -> Any:
    found = {}
    for size, batch_size in (("m", 512), ("m", 2048), ("s", 512), ("s", 2048), ("m", 256)):
        if setting.small:
            size, batch_size = "s", 64
        found[f"{size}, {batch_size} subjects"] = fit(
            setting, setting.layout(size), setting.lengths, batch_size, 3 if setting.small else 6
        )  # type: ignore[arg-type]
        print(json.dumps(found), flush=True)
        if setting.small:
            break
    return found


def update(setting: Setting, model: Any, optimizer: Any, data: EncodedSubjects, batch: Any) -> None:
    optimizer.zero_grad()
    loss = model.loss(assemble(model.layout, data, batch, 20.0)) if isinstance(model, PlainModel) else model(batch)
    loss.backward()
    optimizer.step()
    setting.wait()


def before(setting: Setting) -> Any:
    found = {}
    for size in ("s",) if setting.small else ("m", "s"):
        layout = setting.layout(size)  # type: ignore[arg-type]
        lengths = np.full(256, 20)
        data = setting.data(layout, lengths)
        batch = next(iter(SubjectBatches(data, layout, np.arange(256), lengths=lengths, batch_size=256, seed=0)))
        ours = SubjectLoss(TabularModel(layout).to(setting.device), data, 20.0)
        plain = PlainModel(layout).to(setting.device)
        sides = {}
        for name, model in (("before", plain), ("ours, eager", ours)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

            sides[name] = partial(update, setting, model, optimizer, data, batch)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(3 if setting.small else 23):
            for name, work in sides.items():
                start = time.perf_counter()
                work()
                if number > 2 or setting.small:
                    seconds[name].append(time.perf_counter() - start)
        found[size] = {name: round(1e3 * statistics.median(one), 3) for name, one in seconds.items()} | {"events": 256 * 20}
    return found


def generate(setting: Setting) -> Any:
    from stoker.recipes.tabular import Synthesizer

    count = 500 if setting.small else 100_000
    layout = make_layout(EVENTS, context=USERS, max_length=60, median_length=10, size="m")
    model = TabularModel(layout).to(setting.device)
    # Lengths as a trained model has them: geometric, 10 on average.
    chances = np.append(1e-9, 0.1 * 0.9 ** np.arange(60))
    weights = model.upstream_weights()
    weights["predictors.predictors.tgt:/__slen_cat.bias"] = torch.from_numpy(np.log(chances))
    weights["predictors.predictors.tgt:/__slen_cat.weight"].zero_()
    model.load_upstream(weights)
    context = np.stack([setting.rng.integers(0, sub.num_classes, count) for sub in layout.context], 1)
    seconds, events = [], 0
    for _ in range(2 if setting.small else 5):
        setting.wait()
        start = time.perf_counter()
        found = generate_codes(model, count, seed=1, context=context)
        setting.wait()
        seconds.append(time.perf_counter() - start)
        events = len(found.codes)
    answer: dict[str, Any] = {"subjects": count, "events": events, "seconds_to_codes": [round(one, 3) for one in seconds]}
    print(json.dumps(answer), flush=True)
    rng = np.random.default_rng(0)
    rows = 2_000 if setting.small else 30_000
    table = {
        "user": np.repeat(np.arange(rows // 10), 10), "kind": rng.choice(list("abcdefgh"), rows),
        "amount": np.round(rng.lognormal(3, 1, rows), 2),
        "score": rng.normal(size=rows), "time": (np.cumsum(rng.integers(1, 9999, rows)) + 1_500_000_000).astype("datetime64[s]"),
    }  # fmt: skip
    synthesizer = Synthesizer(size="m", epochs=2, seed=0).fit(table, key="user")
    with _disk.temporary_folder() as folder:
        from pyarrow import parquet

        for _ in range(2):
            start = time.perf_counter()
            made = synthesizer.sample(count)
            decoded = time.perf_counter() - start
            parquet.write_table(made, folder / "x.parquet")
            answer["to_parquet"] = {
                "events": len(made),
                "seconds_to_table": round(decoded, 3),
                "seconds": round(time.perf_counter() - start, 3),
            }
    return answer


def flat(setting: Setting) -> Any:
    count = 500 if setting.small else 39_074  # 80 % of the rows
    found = {}
    for size, batch_size in (("m", 512), ("s", 2048)):
        layout = make_layout(ADULT, size=size)  # type: ignore[arg-type]
        found[size] = fit(setting, layout, np.ones(count, np.int64), batch_size, 3 if setting.small else 40)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A few updates, also without a GPU; writes no result file.")
    parser.add_argument("--part", default="train,before,generate,flat")
    parser.add_argument("--out", help="Where the result goes. [default: benchmarks/results/gpu_tabular.json]")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        raise SystemExit("torch sees no GPU here. Use --small to see that all parts run.")
    setting = Setting(device, small=options.small)
    parts: dict[str, Callable[[Setting], Any]] = {"train": train, "before": before, "generate": generate, "flat": flat}
    answer: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if device == "cuda" else "none", "torch": torch.__version__}
    for name in options.part.split(","):
        start = time.perf_counter()
        try:
            answer[name] = parts[name](setting)
        except Exception:  # one part must not lose the others
            traceback.print_exc()
            answer[name] = "failed"
        print(json.dumps({name: answer[name], "took": round(time.perf_counter() - start, 1)}), flush=True)
    if not options.small:
        from benchmarks import record

        record.save("gpu_tabular", QUESTION, answer, path=Path(options.out) if options.out else None)


if __name__ == "__main__":
    main()
