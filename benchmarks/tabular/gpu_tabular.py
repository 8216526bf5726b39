"""How fast does the recipe for tabular sequences train and generate on a GPU?

Needs a GPU and torch. Codes are random, which takes the same time as those of a table.

    --part train       events per second of whole epochs by `stoker.Trainer`, captured as CUDA graphs, sizes s and m
    --part before      one update of the usual formulation (a loop over sub-columns, eager) and of ours, interleaved
    --part generate    100,000 subjects with about 1,000,000 events, size m: to tensors, to arrays of codes, and to a Parquet file
    --part flat        a table of 48,842 rows and 15 columns: seconds per epoch, and for 40 epochs
    --part adult       the same from a table to a trained model by `Synthesizer.fit`, with the default stop
    --part upstream    epochs and generation of mostlyai-engine, whose wheels are in --wheels, and ours on the same tables
    --part profile     the kernels of an update, and of a step of generation

A result is written after each part; parts that are not asked for stay as the file has them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
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
from stoker_recipes.tabular.batches import EncodedSubjects, SubjectBatches, SubjectLoss, assemble, mean_events
from stoker_recipes.tabular.generation import generate_codes, generate_tensors
from stoker_recipes.tabular.layout import ModelLayout, Size, make_layout
from stoker_recipes.tabular.model import TabularModel

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

    def layout(self, size: Size, *, feeds_context: bool = False) -> ModelLayout:
        """That of TabularARGN, or as the recipe has it: with an LSTM that sees the context."""
        return make_layout(EVENTS, context=USERS, max_length=100, median_length=14, size=size, feeds_context=feeds_context)

    def data(self, layout: ModelLayout, lengths: Any) -> EncodedSubjects:
        subs = layout.subs[layout.num_positions :]
        codes = np.stack([self.rng.integers(0, sub.num_classes, int(lengths.sum())) for sub in subs], 1).astype(np.int16)
        context = (
            np.stack([self.rng.integers(0, sub.num_classes, len(lengths)) for sub in layout.context], 1) if layout.context else None
        )
        return EncodedSubjects.of(codes, np.cumsum(lengths) - lengths, lengths, context, self.device)


def fit(
    setting: Setting, layout: ModelLayout, lengths: Any, batch_size: int, epochs: int, *, data: EncodedSubjects | None = None,
    is_validated: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Epochs by the trainer; the first two, with the capture of graphs, are reported on their own."""
    data = setting.data(layout, lengths) if data is None else data
    known, valid = np.arange(len(lengths)), None
    if is_validated:
        known, held_out = np.split(known, [round(0.8 * len(known))])
        valid = SubjectBatches(data, layout, held_out, lengths=lengths, batch_size=batch_size, seed=1, is_fixed=True)
    batches = SubjectBatches(data, layout, known, lengths=lengths, batch_size=batch_size, seed=0)
    whole = SubjectLoss(TabularModel(layout).to(setting.device), data, mean_events(lengths, 100))
    times = [time.perf_counter()]

    class Clock:
        def on_epoch_end(self, report: Any) -> None:
            times.append(time.perf_counter())

    on_gpu = setting.device.type == "cuda"
    trainer = stoker.Trainer(
        whole, lambda model, batch: model(batch), torch.optim.AdamW(whole.parameters(), lr=1e-3),
        execution=stoker.train.Execution(fused=True, graph=True if on_gpu else "auto", compile=False),
        precision="tf32" if on_gpu else "fp32", callbacks=[Clock()], seed=0,
        progress=False,
    )  # fmt: skip
    result = trainer.fit(batches, valid=valid, epochs=epochs)
    seconds = np.diff(times)
    usual = float(np.median(seconds[2:])) if len(seconds) > 3 else float(seconds[-1])
    lengths = lengths[known]
    return {
        "subjects": len(lengths), "events": int(lengths.sum()), "batch_size": batch_size, "updates_per_epoch": len(batches),
        "seconds_first_epochs": [round(float(second), 3) for second in seconds[:2]], "seconds_per_epoch": round(usual, 4),
        "events_per_second": round(float(lengths.sum()) / usual), "seconds_in_all": round(float(times[-1] - times[0]), 2),
        "ms_per_update": round(1e3 * usual / len(batches), 3), "loss": result.metrics["loss"],
    }  # fmt: skip


def train(setting: Setting) -> Any:
    found = {}
    for size, batch_size in (("m", 512), ("m", 2048), ("s", 512), ("s", 2048), ("m", 256)):
        if setting.small:
            size, batch_size = "s", 64
        found[f"{size}, {batch_size} subjects"] = fit(
            setting, setting.layout(size, feeds_context=True), setting.lengths, batch_size, 3 if setting.small else 6
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


def make_generated(setting: Setting) -> dict[str, Any]:
    """Seconds to generate codes."""
    count = 500 if setting.small else 100_000
    layout = make_layout(EVENTS, context=USERS, max_length=60, median_length=10, size="m", feeds_context=True)
    model = TabularModel(layout).to(setting.device)
    # Lengths as a trained model has them: geometric, 10 on average.
    chances = np.append(1e-9, 0.1 * 0.9 ** np.arange(60))
    weights = model.upstream_weights()
    weights["predictors.predictors.tgt:/__slen_cat.bias"] = torch.from_numpy(np.log(chances))
    weights["predictors.predictors.tgt:/__slen_cat.weight"].zero_()
    model.load_upstream(weights)
    context = np.stack([setting.rng.integers(0, sub.num_classes, count) for sub in layout.context], 1)
    on_device, who = torch.from_numpy(context).to(setting.device), torch.arange(count, device=setting.device)
    times: dict[str, list[float]] = {"tensors": [], "codes": []}
    events = 0
    for _ in range(2 if setting.small else 5):
        for name, work in (
            ("tensors", lambda: generate_tensors(model, who, seed=1, context=on_device)),
            ("codes", lambda: generate_codes(model, count, seed=1, context=context)),
        ):
            setting.wait()
            start = time.perf_counter()
            found = work()  # type: ignore[no-untyped-call]
            setting.wait()
            times[name].append(round(time.perf_counter() - start, 4))
            events = len(found[0] if isinstance(found, tuple) else found.codes)
    return {"subjects": count, "events": events, **{f"seconds_to_{name}": one for name, one in times.items()}}


def generate(setting: Setting) -> Any:
    from stoker_recipes.tabular import Synthesizer

    count, answer = 500 if setting.small else 100_000, make_generated(setting)
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


def make_adult(rows: int, seed: int = 0) -> Any:
    """A table of people with 15 columns, of the kinds and sizes of the Adult data, that depend on each other."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.gamma(6, 6.5, rows).astype(int), 17, 90)
    years = np.clip(np.rint(rng.normal(10, 2.5, rows)).astype(int), 1, 16)
    sex, married = rng.random(rows) < 0.67, rng.random(rows) < np.clip((age - 17) / 40, 0, 0.75)
    job = (years + rng.integers(0, 5, rows)) % 14
    hours = np.clip(np.rint(rng.normal(38 + 4 * sex, 10, rows)).astype(int), 1, 99)
    score = -7 + 0.3 * years + 0.03 * age + 1.5 * married + 0.03 * hours
    income = rng.random(rows) < 1 / (1 + np.exp(-score))
    gain = np.where(rng.random(rows) < 0.05 + 0.1 * income, rng.choice(120, rows) * 257, 0)
    text = {
        "workclass": (job // 2 + rng.integers(0, 2, rows)) % 9, "education": years, "occupation": job,
        "marital": np.where(married, 0, rng.integers(1, 7, rows)), "relationship": np.where(married, sex * 1, rng.integers(2, 6, rows)),
        "race": rng.choice(5, rows, p=[0.85, 0.1, 0.03, 0.01, 0.01]),
        "sex": sex * 1, "country": np.minimum(rng.geometric(0.5, rows), 41), "income": income * 1,
    }  # fmt: skip
    numbers = {
        "age": age, "fnlwgt": rng.lognormal(12, 0.5, rows).astype(int), "education_num": years, "gain": gain,
        "loss": np.where(rng.random(rows) < 0.05, rng.choice(90, rows) * 23, 0), "hours": hours,
    }  # fmt: skip
    return numbers | {name: np.char.add(name[:2], codes.astype(str)) for name, codes in text.items()}


def adult(setting: Setting) -> Any:
    import pyarrow as pa

    from stoker_recipes.tabular import train as train_table
    from stoker_recipes.tabular.data import prepare
    from stoker_recipes.tabular.settings import make_settings

    found: dict[str, Any] = {}
    table = pa.table(make_adult(500 if setting.small else 48_842))
    for name, seed in (("cold", 0), ("warm", 1), ("warm again", 2)):
        with _disk.temporary_folder() as folder:
            start = time.perf_counter()
            prepare(table, settings=make_settings(size="m"), say=lambda *_: None)
            encoded = time.perf_counter()
            done = train_table(table, folder=folder / "run", size="m", seed=seed, epochs=2 if setting.small else 100)
            assert done.result is not None
            found[name] = {
                "seconds": round(time.perf_counter() - encoded, 3), "seconds_training": round(done.result.seconds, 3),
                "seconds_encoding": round(encoded - start, 3),
                "epochs": done.result.epoch, "stopped": done.result.stopped, "loss": done.result.best,
            }  # fmt: skip
        print(json.dumps(found[name]), flush=True)
    return found


def make_shop_tables(users: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Events with 5 columns, one of them a date, and contexts with 3."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(1 / 20, users), 100)
    rows = int(lengths.sum())
    gaps = rng.integers(60, 90_000, rows)
    events = {
        "user": np.repeat(np.arange(users), lengths), "kind": rng.choice(list("abcdefgh"), rows),
        "shop": np.char.add("s", rng.integers(0, 30, rows).astype(str)), "amount": np.round(rng.lognormal(3, 1, rows), 2),
        "score": rng.normal(size=rows), "time": (1_500_000_000 + np.cumsum(gaps)).astype("datetime64[s]"),
    }  # fmt: skip
    context = {"user": np.arange(users), "segment": rng.choice(list("wxyz"), users), "region": rng.choice(list("abcdefgh"), users),
               "age": rng.integers(18, 90, users)}  # fmt: skip
    return events, context


def _run_upstream(events: Any, context: Any, batch_size: int, wheels: str | None) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    with _disk.temporary_folder() as folder:
        for name, table in (("events", events), ("users", context)):
            parquet.write_table(pa.table(table), folder / f"{name}.parquet")
        command = [sys.executable, "-m", "benchmarks.before.mostlyai_tabular", str(folder), "--batch-size", str(batch_size)]
        command += ["--relative", "time", "--epochs", "3", *(["--wheels", wheels] if wheels else [])]
        log = folder / "log"
        with log.open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):  # steps that were done by then count
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=150, check=False)
        text = log.read_text()
    print(text[-4000:], flush=True)
    return {one["step"]: one for one in map(json.loads, (line for line in text.splitlines() if line.startswith("{")))}


def upstream(setting: Setting, wheels: str | None) -> Any:
    from stoker_recipes.tabular.data import prepare
    from stoker_recipes.tabular.settings import make_settings

    users = 200 if setting.small else 4_000
    events, context = make_shop_tables(users)
    batch_size = 64 if setting.small else 512
    steps = _run_upstream(events, context, batch_size, wheels)
    settings = make_settings(size="m")
    start = time.perf_counter()
    prepared = prepare(events, key="user", context=context, settings=settings, say=lambda *_: None)
    found: dict[str, Any] = {"seconds_to_prepare": round(time.perf_counter() - start, 2)}
    layout = prepared.spec.layout()
    data = EncodedSubjects.of(prepared.codes, prepared.starts, prepared.lengths, prepared.context, setting.device)
    found["ours"] = fit(setting, layout, prepared.lengths, batch_size, 3 if setting.small else 8, data=data, is_validated=True)
    print(json.dumps(found), flush=True)
    found["upstream"] = steps
    if "train" in steps and steps["train"]["epoch_seconds"]:
        # An epoch of both is 80 % of the subjects, and a validation with the others.
        rate = 0.8 * steps["split"]["events"] / statistics.median(steps["train"]["epoch_seconds"])
        found["upstream_events_per_second"] = round(rate)
        found["ratio"] = round(found["ours"]["events_per_second"] / rate, 1)
    return found


def profile(setting: Setting) -> Any:
    """Kernels of an update and of a step of generation, by time on the device."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if setting.device.type == "cuda" else [])
    found = {}

    def note(name: str, work: Callable[[], Any], times: int) -> None:
        work()
        setting.wait()
        with watch(activities=kinds) as seen:
            start = time.perf_counter()
            for _ in range(times):
                work()
            setting.wait()
            wall = time.perf_counter() - start
        kernels = [average for average in seen.key_averages() if str(average.device_type).endswith("CUDA")]
        rows = sorted(
            ((kernel.self_device_time_total / times, kernel.count / times, kernel.key[:90]) for kernel in kernels), reverse=True
        )
        found[name] = {
            "ms": round(1e3 * wall / times, 3), "device_ms": round(sum(row[0] for row in rows) / 1e3, 3),
            "kernels": round(sum(row[1] for row in rows)), "top": [(round(a, 1), round(b, 1), c) for a, b, c in rows[:22]],
        }  # fmt: skip
        print(name, json.dumps(found[name], indent=0), flush=True)

    for name, layout, lengths in (
        ("flat m 512", make_layout(ADULT, size="m"), np.ones(512, np.int64)), ("m 512", setting.layout("m"), np.full(512, 20)),
    ):  # fmt: skip
        if setting.small:
            lengths = lengths[:16]
        data = setting.data(layout, lengths)
        batch = next(iter(SubjectBatches(data, layout, np.arange(len(lengths)), lengths=lengths, batch_size=len(lengths), seed=0)))
        ours = SubjectLoss(TabularModel(layout).to(setting.device), data, float(lengths.mean()))
        optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3, fused=True)
        torch.set_float32_matmul_precision("high")
        note(name, partial(update, setting, ours, optimizer, data, batch), 3)
        torch.set_float32_matmul_precision("highest")
    layout = make_layout(EVENTS, context=USERS, max_length=60, median_length=10, size="m")
    model = TabularModel(layout).to(setting.device)
    count = 64 if setting.small else 16384
    who = torch.arange(count, device=setting.device)
    context = torch.zeros(count, len(layout.context), dtype=torch.long, device=setting.device)
    for most in (1, 21):
        note(
            f"generate, {most} steps",
            lambda most=most: generate_tensors(model, who, seed=1, context=context, lengths=(most, most)),
            1,
        )  # type: ignore[misc]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A few updates, also without a GPU; writes no result file.")
    parser.add_argument("--part", default="train,before,generate,flat,adult,upstream")
    parser.add_argument("--wheels", help="A folder with wheels of mostlyai-engine, where it is not installed.")
    parser.add_argument("--out", help="Where the result goes. [default: benchmarks/results/gpu_tabular.json]")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.small:
        raise SystemExit("torch sees no GPU here. Use --small to see that all parts run.")
    setting = Setting(device, small=options.small)
    parts: dict[str, Callable[[Setting], Any]] = {
        "train": train,
        "before": before,
        "generate": generate,
        "flat": flat,
        "adult": adult,
        "upstream": partial(upstream, wheels=options.wheels),
        "profile": profile,
    }
    from benchmarks import record

    path = Path(options.out) if options.out else record.RESULTS / "gpu_tabular.json"
    earlier = record.RESULTS / "gpu_tabular.json"
    before_run = json.loads(earlier.read_text()) if earlier.is_file() and not options.small else {}
    asked = options.part.split(",")
    answer: dict[str, Any] = {name: one for name, one in before_run.items() if name in parts or name == "kernels"}
    if set(answer) - set(asked):
        stayed = ", ".join(name for name in answer if name not in asked)
        answer["stayed"] = f"{stayed}: of commit {before_run['commit']}"
    answer |= {"gpu": torch.cuda.get_device_name() if device == "cuda" else "none", "torch": torch.__version__}
    for name in asked:
        start = time.perf_counter()
        try:
            answer[name] = parts[name](setting)
        except Exception:  # one part must not lose the others
            traceback.print_exc()
            answer[name] = "failed"
        print(json.dumps({name: answer[name], "took": round(time.perf_counter() - start, 1)}), flush=True)
        if not options.small:
            record.save("gpu_tabular", QUESTION, answer, path=path, show=False)


if __name__ == "__main__":
    main()
