"""Writes docs/benchmarks.md and the numbers of the README from the result files: `python -m benchmarks.page`.

Every number is read from a file in benchmarks/results, never typed. `tests/test_docs.py` fails when they
are out of date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- numbers: written by `make reference` -->\n", "<!-- end of numbers -->"

INTRO = """\
# Benchmarks

This page is generated from the files in `benchmarks/results/` by `make reference`. Do not edit it by hand.

Numbers are medians; quartiles are in parentheses. Both sides of a comparison run in turn in one process or one script, and the
results are checked for equality where that applies. A result file holds the command, the machine, the commit and the spread. Unless a
row says H200, the machine has two cores of an AMD EPYC and 25 GB of memory. "CPU time" is the CPU time of the process. Other programs
on the machine change it less than wall time.

Run `make bench` to measure on your own machine (`FULL=1` for the full size). Negative results are in the [journal](journal.md).
"""


class Record:
    """A result file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.data = json.loads((RESULTS / f"{name}.json").read_text())

    def get(self, *path: str) -> Any:
        """The entry at a path; of a spread, its median."""
        found = self.data
        for key in path:
            found = found[key]
        return found["median"] if isinstance(found, dict) and "median" in found else found

    def spread(self, *path: str, digits: int = 3) -> str:
        """A median with its quartiles."""
        found = self.data
        for key in path:
            found = found[key]
        return f"{short(found['median'], digits)} ({short(found['q1'], digits)}-{short(found['q3'], digits)})"


def short(number: float, digits: int = 3) -> str:
    """A number with a few significant digits."""
    rounded = float(f"{number:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def percent(share: float, digits: int = 2) -> str:
    """A share as a percentage."""
    return f"{short(100 * share, digits)} %"


class Row(NamedTuple):
    """A line of a table: what was measured, the result file, and the answer as a function of it."""

    what: str
    file: str
    answer: Callable[[Record], str]


READ = "speed over pyarrow's read, {} time"


def packing(kind: str) -> Callable[[Record], str]:
    tables = {"bars": "bars, one series per symbol, times checked", "noise": "noise", "events": "events, one series per event"}
    return lambda r: ", ".join(
        f"{name} {r.spread('pack speed over read speed', f'{kind}: {entry}', 'ratio', digits=2)}" for name, entry in tables.items()
    )


def peers(record: Record, kind: str) -> str:
    rows = record.get(kind, "rows")

    def best(wanted: Callable[[dict[str, Any]], bool]) -> str:
        return short(max(row["of ideal"]["median"] for row in rows if wanted(row)), 2)

    loader = [row for row in rows if row["peer"] == "dataloader"]
    one = next(row for row in loader if "a call" in row["case"] and row["workers"].startswith("0"))["of ideal"]["median"]
    return (
        f"`stoker.Feed` {best(lambda row: row['peer'] == 'stoker')}; `DataLoader` with `__getitems__` "
        f"{best(lambda row: row['peer'] == 'dataloader' and '__getitems__' in row['case'])}, sample by sample {short(one, 2)}; best of the "
        f"other libraries {best(lambda row: row['peer'] not in ('stoker', 'indexing', 'dataloader'))}"
    )


def gather(record: Record) -> str:
    rows = [row for row in record.data["one array [batch, steps]"].items() if "2049" in row[0] and "equal" in row[0]]
    kernel = [row["share of memcpy, the kernel alone"]["median"] for _, row in rows]
    whole = [row["share of memcpy, the whole feed"]["median"] for _, row in rows]
    bars = record.get("bars of TFA: 200,000 x 55, windows of 48, batch 1024", "share of memcpy")
    return (
        f"kernel {min(kernel):.2f}-{max(kernel):.2f}; whole feed {min(whole):.2f}-{max(whole):.2f}; windows of 48 x 55 {bars:.2f}"
    )


def mixture(record: Record) -> str:
    name = "speed of the mixture, relative to one store"
    shares = [row[name]["median"] for row in record.data["cases"].values()]
    wide = record.get("cases", "windows of 192 x 8 columns, batch 256", name)
    return f"{min(shares):.2f}-{max(shares):.2f}; windows of 192 x 8 columns, batch 256: {wide:.2f}"


def cold(record: Record) -> str:
    limited = "limited by blkio.throttle.read_bps_device 254:0 500000000"
    shares = [record.get(limited, kind, "sides", "feed, block shuffle", "share of sequential") for kind in ("events", "segments")]
    full = record.data[limited]["events"]["sides"]["feed, full shuffle"]
    return (
        f"block shuffle {shares[0]:.2f} (events), {shares[1]:.2f} (segments); full shuffle of events "
        f"{full['share of sequential']['median']:.2f}, which reads {full['bytes read for one used']:.1f} bytes for each byte used"
    )


def tune_search(record: Record, method: str) -> str:
    return ", ".join(
        f"{task} {short(record.get('quality', task, 'loss relative to optuna TPE', method), 2)} and "
        f"{short(record.get('quality', task, 'loss relative to random', method), 2)}"
        for task in record.data["quality"]
    )


def gpu_batches(record: Record) -> str:
    shares = ", ".join(f"{name} {percent(record.get('models', name, 'share of the best'), 3)}" for name in record.data["models"])
    return f"{shares}; {short(record.get('most seconds'))} s"


def verdicts(record: Record) -> str:
    by_kind = record.data["by_kind"]
    planted = [by_kind[kind] for kind in ("single", "mixed", "story")]
    right, programs = (sum(kind[name] for kind in planted) for name in ("top_1", "programs"))
    others, everyday, mixed, noisy = (by_kind[kind] for kind in ("other", "everyday", "mixed", "sabotaged"))
    return (
        f"{right} of {programs}; independently written programs {others['top_1']} of {others['programs']}; rare steps and common mistakes "
        f"{everyday['top_1']} of {everyday['programs']}; second cause right in {mixed['second_right']} of {mixed['programs']}; disturbed "
        f"runs without a verdict {noisy['no_verdict']} of {noisy['programs']}{_earlier(record)}"
    )


def public_scripts(record: Record) -> str:
    found = record.data["scripts"]
    return (
        f"{found['ran']} of {found['diagnosed']} run, {found['verdict']} with a verdict and {found['likely']} with a likely cause; an "
        f"ablation confirms {found['top_1']} of {found['judged']} ({found['top_2']} with the second cause)" + _unseen(record)
    )


def _unseen(record: Record) -> str:
    """What was said at first of scripts that were added when the rule was finished."""
    found = record.data.get("unseen", {"judged": 0})
    return f"; of unseen ones {found['top_1']} of {found['judged']} ({found['top_2']})" if found["judged"] else ""


def patches(record: Record) -> str:
    rows = record.data["programs"].values()
    written = [row for row in rows if row.get("fixes")]
    each = "; ".join(
        f"{' + '.join(row['fixes'])} {short(row['speedup'])}x, losses {row['losses']}, {short(row['seconds'])} s" for row in written
    )
    return f"{len(written)} of {len(rows)}: {each}"


def gpu_watch(record: Record) -> str:
    cases = {name: one for name, one in record.data.items() if isinstance(one, dict) and "found" in one}
    named = {
        name: "; ".join(f"{found['cause']} after {found['step'] - one['slowdown made at step']} steps" for found in one["found"])
        for name, one in cases.items()
        if one["slowdown made at step"] is not None
    }
    soak = record.data["soak without a slowdown"]
    return "; ".join(f"{name}: {found or 'not found'}" for name, found in named.items()) + (
        f"; {len(soak['found'])} false alarms in {soak['steps']:,} steps"
    )


def _if_there(*rows: Row) -> list[Row]:
    """Rows of result files that need another machine, as far as there are any."""
    return [row for row in rows if (RESULTS / f"{row.file}.json").exists()]


def _earlier(record: Record) -> str:
    """How many verdicts are those of an earlier rule."""
    number = sum("before" in row.get("of", "") for row in record.data["programs"])
    return f". {number} of these verdicts are from before rare steps were a cause" if number else ""


def ablation(record: Record) -> str:
    found = record.data["ablation"]
    return (
        f"{found['programs']} programs: median gain {percent(found['median_gain'])}; stated cause contradicted in "
        f"{len(found['contradicted'])}"
    )


def verdict_tools(record: Record) -> str:
    names = {"stoker": "Stoker", "traceml": "TraceML 0.5", "gpuprof": "gpuprof 0.7", "profiler": "a rule on `torch.profiler`"}
    return "; ".join(
        f"{names[tool]}: {table['all']['right']} of {table['all']['programs']} right ({table['all']['exact']} exactly), "
        f"{table['all']['none']} without a verdict"
        for tool, table in record.data["by_tool"].items()
        if "all" in table
    )  # on the programs that each was asked about


def tries(record: Record) -> str:
    every, unseen = record.data["all"], record.data["unseen"]
    return (
        f"{every['predicted']} of {every['tried']} trials of advised fixes have a predicted number ({percent(every['share'])}; "
        f"asked 60 %): median error {percent(every['median'])} (asked 4 %), 90th percentile {percent(every['p90'])} (asked 10 %)"
    ) + (
        f". On programs that the rule was not set on: {percent(unseen['share'])}, {percent(unseen['median'])} and {percent(unseen['p90'])}"
        if unseen["predicted"]
        else ", all of programs that the rule was set on"
    )


def trainers(record: Record) -> str:
    case = "2-layer MLP, batch 32x16x8, batches in a list"
    names = {
        "stoker": "ours over plain, same AdamW",
        "Fabric": "Fabric over plain",
        "Accelerate": "Accelerate over plain",
        "Lightning": "Lightning over plain",
    }
    return (
        ", ".join(f"{name} {record.spread(case, 'times', entry)}" for name, entry in names.items()) + "; same weights bit for bit"
    )


def short_series(record: Record) -> str:
    times = record.data["short"]["times faster"]
    return f"{short(times['median'])} times ({short(times['min'])}-{short(times['max'])}); {record.data['short']['note']}"


def time_moe(record: Record) -> str:
    ours, theirs = (record.data["step"][name] for name in ("recipe bf16, 8 x 2048", "original bf16, 8 x 2048"))
    return (
        f"{ours['it/s']:.1f} steps/s against {theirs['it/s']:.1f}, {ours['peak GiB']:.1f} GiB against {theirs['peak GiB']:.0f}; "
        f"{percent(ours['wait for the feed'], 1)} of the time waits for data"
    )


def tfa_step(record: Record) -> str:
    faster = record.spread("faster than the authors' loop", "windows, bf16, compiled")
    apart = record.get("losses of 100 steps differ from the authors' by at most (relative)", "windows, bf16, compiled")
    return f"{faster}; losses of 100 steps within {apart:.0e}"


def icecube(record: Record) -> str:
    rates = {
        name: record.get(part, row, "events_per_second", "median") / 1e3
        for name, part, row in (
            ("padded", "before", "before L6"),
            ("packed", "ours", "ours L6 float32 residual"),
            ("deep", "ours", "ours L24 float32 residual"),
            ("padded deep", "before", "before L24"),
        )
    }
    seconds, rate = (record.get("sustained", "5m", name) for name in ("seconds", "events_per_second"))
    run = f"a run of {seconds:.0f} s with loading {rate / 1e3:.0f}K"
    return (
        f"{rates['packed']:.0f}K, padded and compiled {rates['padded']:.1f}K; {run}; with 24 layers {rates['deep']:.1f}K, padded and "
        f"compiled {rates['padded deep']:.1f}K"
    )


def tabular(record: Record) -> str:
    rates = [record.get("train", f"m, {size} subjects", "events_per_second") / 1e6 for size in (256, 512, 2048)]
    tensors = sorted(record.get("generate", "seconds_to_tensors"))
    rate = ", ".join(f"{rate:.1f}" for rate in rates)
    seconds = record.get("generate", "to_parquet", "seconds")
    return f"{rate} with batches of 256, 512 and 2,048; {tensors[len(tensors) // 2]:.2f} to tensors, {seconds:.2f} to Parquet"


def slower(record: Record, case: str) -> str:
    row = record.data["host residency"][case]
    ours, loader = (row[f"slower {name}"]["median"] for name in ("than with a batch that is there", "with DataLoader, 8 workers"))
    return f"{percent(ours)} with `stoker.Feed`, {percent(loader)} with `DataLoader` (8 workers)"


TABLES: dict[str, list[Row]] = {
    "Stores": [
        Row("Speed of packing Parquet, relative to reading it with pyarrow", "bench_pack_speed", packing("parquet")),
        Row("Speed of packing CSV, relative to reading it with pyarrow", "bench_pack_speed", packing("csv")),
        Row(
            "Time to open a store of 48 million series",
            "bench_open",
            lambda r: (
                f"{short(1000 * r.get('48,000,000 series', 'open seconds'), 2)} ms; ten series take "
                f"{short(1000 * r.get('10 series', 'open seconds'), 2)} ms"
            ),
        ),
        Row(
            "CPU time of appending 1 % of 9.7 million rows, relative to a pack of all",
            "bench_append",
            lambda r: ", ".join(f"{kind} {r.spread(kind, 'append over pack, CPU time', digits=2)}" for kind in ("CSV", "Parquet")),
        ),
        Row(
            "CPU time to open a store after 1,000 appends, relative to the compacted store",
            "bench_append",
            lambda r: (
                f"{r.spread('many appends', 'open over compacted, CPU time', digits=2)}; the first read of a column merges the parts: "
                f"{short(1000 * r.get('many appends', 'open and read a column CPU seconds'), 2)} ms, compacted "
                f"{short(1000 * r.get('many appends', 'open and read a column of the compacted store CPU seconds'), 2)} ms"
            ),
        ),
        Row(
            "Cost of reading one random series, relative to slicing a plain `np.memmap`",
            "bench_random_read",
            lambda r: ", ".join(
                f"{kind} {r.spread(kind, 'cost over np.memmap', digits=2)}" for kind in ("ragged", "equal lengths")
            ),
        ),
        Row(
            "Peak memory of a pack with `--memory 256MB`, input ten times as large, keys scattered",
            "bench_memory",
            lambda r: (
                f"Parquet {short(r.get('parquet, integer keys', 'pack', 'peak MB'))} MB, CSV "
                f"{short(r.get('csv, integer keys', 'pack', 'peak MB'))} MB; grouping with pandas "
                f"{short(r.get('parquet, integer keys', 'group in memory with pandas', 'peak MB'), 4)} MB"
            ),
        ),
        Row(
            "Stable sort of integer keys, times faster than NumPy's",
            "bench_sort",
            lambda r: (
                f"{r.spread('64 bits', 'times faster', digits=2)} (64 bits) to "
                f"{r.spread('50,000 keys', 'times faster', digits=2)} (50,000 keys)"
            ),
        ),
        Row(
            "Sort of 20M scattered rows with `--memory 256MB`, times the CPU time of before",
            "bench_sort",
            lambda r: r.spread("pack of scattered rows", "new over old, CPU time", digits=2),
        ),
    ],
    "Feeding": [
        Row(
            "Samples per CPU second, relative to `index_select` into one buffer: segments of 2048, batch 256",
            "bench_peers",
            lambda r: peers(r, "segments"),
        ),
        Row("The same: windows of 48 x 55, batch 1024", "bench_peers", lambda r: peers(r, "windows")),
        Row("Bandwidth of random batches on one core, relative to memcpy", "bench_gather", gather),
        Row("Speed of a mixture of 3 stores, relative to one store of their size", "bench_mixture", mixture),
        Row(
            "Times faster than Time-MoE's data sets, same values",
            "bench_timemoe",
            lambda r: (
                f"segments of 2,048 points "
                f"{r.spread('20,000 segments of 2,048, zero', 'batch 256', 'times faster, one array and lengths')}; windows of series of "
                f"1,048,577 points {r.spread('16 series of 1,048,577, zero', 'batch 32', 'times faster, one array and lengths')}"
            ),
        ),
        Row(
            "Shuffled, padded neutrino events, times faster than iceaggr's loader with its cache of one file, CPU time",
            "bench_icecube",
            lambda r: (
                f"66 files of 1,500 events {r.spread('66 files of 1,500', 'next to iceaggr', 'times as fast', 'shuffled')}; "
                f"5 files of 18,000 {r.spread('5 files of 18,000', 'next to iceaggr', 'times as fast', 'shuffled')}"
            ),
        ),
        Row(
            "128 shuffled neutrino events, grouped by sensor, ms of one core; and relative to events in order",
            "bench_icecube",
            lambda r: ", ".join(
                f"{words} {r.spread('5 files of 18,000', 'batches', kind, 'CPU ms per batch', 'shuffled')}, "
                f"{r.spread('5 files of 18,000', 'batches', kind, 'shuffled over sequential')}"
                for words, kind in (
                    ("ragged", "ragged, 84 pulses"),
                    ("padded to 52 numbers per sensor", "padded, 16 pulses"),
                    ("to 256", "padded, 84 pulses"),
                )
            ),
        ),
        Row(
            "Packing of IceCube's Parquet files, speed relative to pyarrow's read of the same files into memory; peak memory",
            "bench_icecube",
            lambda r: "; ".join(
                f"{layout}: {r.spread(layout, 'pack', READ.format('wall'))} by wall time, "
                f"{r.spread(layout, 'pack', READ.format('CPU'))} by CPU time, "
                f"{r.get(layout, 'pack', 'memory', 'peak, MB')} MB"
                for layout in ("66 files of 1,500", "5 files of 18,000", "1 file of 200,000")
            ),
        ),
        Row(
            "CPU time of an epoch: windows 168 -> 24, one a day, of 370 series of 26,304 hours, scaled per series; relative to other loops",
            "bench_windows",
            lambda r: (
                f"with an MLP {r.spread('batches and an MLP', 'feed / others', 'plain loop')} of a plain `unfold` + `randperm` loop, "
                f"{r.spread('batches and an MLP', 'feed / others', 'DataLoader')} of `DataLoader`; batches alone "
                f"{r.spread('batches alone', 'feed / others', 'plain loop')} and "
                f"{r.spread('batches alone', 'feed / others', 'DataLoader')}"
            ),
        ),
        Row(
            "CPU time of batches: windows that span none of 4,800 gaps, and masks of observed values, relative to plain windows",
            "bench_gaps",
            lambda r: (
                f"every step {r.spread('windows without gaps / plain, stride 1', 'CPU time')}, every day "
                f"{r.spread('windows without gaps / plain, stride 24', 'CPU time')}; masks {r.spread('masks / none', 'CPU time')} for "
                f"{short(r.get('bytes with masks / without'), 3)} times the bytes"
            ),
        ),
        Row("Bandwidth from a cold disk of 500 MB/s, relative to sequential reading", "bench_cold", cold),
        Row(
            "Cost of one index of 132 million shuffled samples",
            "bench_order",
            lambda r: (
                f"`Shuffle` {r.spread('nanoseconds per index', 'Shuffle in chunks of 256')} ns, `BlockShuffle` "
                f"{r.spread('nanoseconds per index', 'BlockShuffle in chunks of 256')} ns; first batch after "
                f"{short(r.get('first batch', 'sequences, Shuffle', 'seconds'), 2)} s (sequences)"
            ),
        ),
        Row(
            "H200, gather on the GPU, relative to a copy of the same size",
            "gpu_feed",
            lambda r: "; ".join(
                f"{short(r.get('device residency', case, 'megabytes a batch'), 2)} MB "
                f"{r.spread('device residency', case, 'share of a copy of the same size, as a graph', digits=2)}"
                for case in ("segments of 2048, batch 256", "segments of 2048, batch 4096", "windows of 48 x 55, batch 8192")
            ),
        ),
        Row(
            "H200, a step of 1 ms becomes longer by: segments of 2048, batch 256",
            "gpu_feed",
            lambda r: slower(r, "segments of 2048, batch 256, step of 1 ms"),
        ),
        Row(
            "The same: windows of 48 x 55, batch 1024",
            "gpu_feed",
            lambda r: slower(r, "windows of 48 x 55, batch 1024, step of 1 ms"),
        ),
    ],
    "Encoding": [
        Row(
            "Digits of 100,000 values, times faster than mostlyai-engine's method",
            "bench_digits",
            lambda r: ", ".join(
                f"{kind} {r.spread('times faster than printing, as a drop-in frame', kind, 'ratio')}"
                for kind in ("money", "normals")
            ),
        ),
        Row(
            "Padded sequences of 100,000 contexts, times faster than a Python loop and than `groupby.indices`",
            "bench_sequences",
            lambda r: (
                f"{short(r.get('100,000 contexts', 'times faster than the loop'))} and "
                f"{short(r.get('100,000 contexts', 'times faster than groupby.indices'))} (one round)"
            ),
        ),
        Row(
            "`analyze` of 100,000 numbers, times faster than mostlyai-engine's method",
            "bench_statistics",
            lambda r: ", ".join(
                f"{kind} {r.spread('analyze_numeric, 100,000 rows', kind, 'times as fast')}" for kind in ("money", "normals")
            ),
        ),
        Row(
            "55 indicators of a million bars, times faster than plain C at -O2 with the same bits",
            "bench_indicators",
            lambda r: r.spread("55 features", "sentio: times faster than C, rows at the end"),
        ),
    ],
    "Training": [
        Row("CPU time per step, relative to a plain torch loop (2-layer MLP)", "bench_trainers", trainers),
        Row(
            "Share of the training thread spent on a checkpoint every 100 steps (10 million weights)",
            "bench_checkpoints",
            lambda r: percent(r.get("batch 64", "share of the CPU time of the training thread"), 1),
        ),
        Row(
            "Loss of what a search finds in the time of 30 full trials, relative to Optuna's TPE and to random search (10 paired seeds)",
            "bench_tune_search",
            lambda r: tune_search(r, "stoker"),
        ),
        Row(
            "CPU time of a search per trial that does nothing, 200 trials, the study in a journal; in memory",
            "bench_tune_search",
            lambda r: "{} ms; {} ms (plain Optuna: {} ms; {} ms)".format(
                *(
                    r.spread("overhead, CPU ms per trial", f"{side}, {kind}")
                    for side in ("stoker", "optuna TPE")
                    for kind in ("journal", "memory")
                )
            ),
        ),
        Row(
            "Throughput of the batch size that `stoker.tune.batch_size` chooses, of the best in an exhaustive sweep",
            "bench_tune_batch",
            lambda r: ", ".join(f"{name} {percent(r.get('models', name, 'share of the best'), 3)}" for name in r.data["models"]),
        ),
        Row("The same on an H200, and the longest search", "gpu_tune_batch", gpu_batches),
        Row(
            "H200, small transformer: the whole step as a CUDA graph, times faster than eager",
            "gpu_trainer",
            lambda r: (
                r.spread("small transformer (d=64, 2 layers, 64 x 48)", "graph faster than eager") + "; losses equal bit for bit"
            ),
        ),
        Row(
            "H200, checkpoint every 100 steps: a step becomes longer by",
            "gpu_trainer",
            lambda r: percent(r.get("saving every 100 steps", "slower with saving")),
        ),
    ],
    "Diagnosing": [
        Row("Programs with a known bottleneck: verdict right, two cores", "bench_verdicts", verdicts),
        Row(
            "The same on an H200, by Hugging Face Trainer, Lightning, Accelerate and plain loops; causes by ablation",
            "gpu_verdicts",
            lambda r: (
                f"{r.get('by_kind', 'gpu', 'top_1')} of {r.get('by_kind', 'gpu', 'programs')}; kept apart, by the rule of today "
                f"{r.get('by_kind', 'apart', 'top_1')} of {r.get('by_kind', 'apart', 'programs')}; verdict "
                f"{short(r.get('seconds_to_the_verdict'), 2)} s after the first step, p90 "
                f"{short(r.data['seconds_to_the_verdict']['p90'])} s"
            ),
        ),
        Row(
            "H200, what the removal of a suspect from the source saves: programs with an accepted cause",
            "gpu_ablations",
            lambda r: f"{sum('accepted' in row for row in r.data['programs'])} of {len(r.data['programs'])}",
        ),
        Row("The stated cause removed (ablation): share of the time that is gone", "bench_verdicts", ablation),
        Row("The cause of programs, named by several tools", "bench_verdict_tools", verdict_tools),
        *_if_there(
            Row("Public training scripts at pinned commits: `stoker diagnose` and ablation", "public_verdicts", public_scripts),
            Row("H200, programs for which `--apply` writes a patch: fixes and what they gain", "gpu_patches", patches),
            Row("H200, slowdowns that are made: what `stoker.watch` names", "gpu_watch", gpu_watch),
        ),
        Row("Predicted speed-up of a fix, against the speed-up measured with `--try`", "bench_tries", tries),
        Row(
            "Cost of `stoker.watch` per empty step, all included, CPU time on one core of a virtual Xeon",
            "bench_watch",
            lambda r: (
                f"{r.spread('empty steps', 'microseconds per step more', digits=2)} µs, of which the detector "
                f"{short(r.get('parts', 'detector, microseconds per step'), 2)} and counters of the system "
                f"{short(r.get('parts', 'counters, microseconds per step'), 2)}"
            ),
        ),
        Row(
            "Simulated steps of 21 noise models: false alarms of the watch; slowdown of 10 % found within 100 steps",
            "bench_slowdowns",
            lambda r: (
                f"{r.get('false alarms in all')} in {short(r.get('steps in all') / 1e6)} million steps; "
                + ", ".join(
                    f"{found['within 100 steps']:.0%} at {scatter}".replace("%", " %")
                    for scatter, found in r.get("slowdown of 10 %, independent steps that scatter by").items()
                    if scatter in ("3%", "5%", "6%", "7%")
                )
                + " scatter"
            ),
        ),
    ],
    "Recipes": [
        Row("H200, Time-MoE 50M in bf16 at 8 x 2048, against the authors' model", "gpu_time_moe", time_moe),
        Row(
            "H200, Time-MoE on series of 302 points: targets per second, against the authors' code",
            "gpu_time_moe_short",
            short_series,
        ),
        Row(
            "H200, Time-MoE: losses of 200 steps, both models in bf16",
            "gpu_time_moe_curve",
            lambda r: "{} apart in the mean, {} at most; the authors' bf16 from their own fp32 {} and {}".format(
                *(
                    percent(r.get("curve", "apart, share of the loss", pair, kind))
                    for pair in ("recipe bf16 from original bf16", "original bf16 from original fp32")
                    for kind in ("mean", "max")
                )
            ),
        ),
        Row("H200, IceCube 5M: events per second of training, batches of 4,096", "gpu_icecube", icecube),
        Row(
            "H200, TimeHUT on Chinatown: 400 updates of one encoder; 128 configurations of 400 updates, with scores",
            "gpu_timehut",
            lambda r: (
                f"{short(r.get('run', 'seconds'))} s ({short(r.get('run', 'MiB'))} MiB); {short(r.get('search', 'seconds'))} s"
            ),
        ),
        Row(
            "TimeHUT on Chinatown, 200 updates on one core: CPU time with scores; one update, times faster than the usual formulation",
            "bench_timehut_core",
            lambda r: (
                f"{short(r.get('runs of the recipe', '200 updates', 'CPU seconds of a run', 'median'))} s; "
                f"{short(r.get('one update', 'faster', 'median'))}"
            ),
        ),
        Row(
            "H200, tabular sequences, size m: million events per second of training; seconds for 1M events", "gpu_tabular", tabular
        ),
        Row(
            "Tabular recipe, 1M rows x 50 numbers and 100K contexts fitted and encoded; times faster than mostlyai-engine (a twentieth)",
            "bench_tabular",
            lambda r: (
                f"{short(sum(r.get('table', 'cpu_seconds', name) for name in ('fit', 'encode')))} CPU s; "
                f"{short(r.get('upstream', 'ratio', 'median'))}"
            ),
        ),
        Row(
            "H200, TFA's step (B=1024, T=48, d=128), times faster than the authors' loop",
            "gpu_tfa",
            tfa_step,
        ),
        Row(
            "TFA: CPU time to within 0.01 of the best possible AUC, times less than the authors' loop (3 seeds, lower bound)",
            "bench_tfa_quality",
            lambda r: " and ".join(
                f"{short(min(bounds))}-{short(max(bounds))} ({name})"
                for name, bounds in (
                    (name, r.get(kind, "banded gets there sooner than authors' loop, at least"))
                    for kind, name in (("lag", "signal at lags"), ("agg", "order-free signal"))
                )
            ),
        ),
        Row(
            "TFA: from a CSV of 200,000 bars to an exported, verified model",
            "bench_tfa",
            lambda r: (
                f"{short(r.get('signal lag', 'wall seconds from CSV to proof'), 2)} s, of which "
                f"{short(r.get('signal lag', 'train', 'wall seconds'), 2)} s training"
            ),
        ),
    ],
}

HEADLINES: list[tuple[str, str]] = [
    (
        "Programs with a known bottleneck that `stoker diagnose` names correctly, 2 cores",
        "Programs with a known bottleneck: verdict right",
    ),
    ("Samples per CPU second, relative to `index_select` (windows of 48 x 55)", "The same: windows of 48 x 55, batch 1024"),
    ("CPU time per step, relative to a plain torch loop", "CPU time per step, relative to a plain torch loop"),
    ("Training step of a small transformer as a CUDA graph on an H200, times faster than eager", "H200, small transformer"),
    ("Time-MoE 50M on an H200, against the authors' model", "H200, Time-MoE 50M"),
]


def table(rows: list[tuple[str, Row]], folder: str) -> Iterator[str]:
    """The lines of a table; `folder` is where the result files are, seen from the page."""
    yield "| measured | result | file |"
    yield "| --- | --- | --- |"
    for what, row in rows:
        yield f"| {what} | {row.answer(Record(row.file))} | [{row.file}]({folder}/{row.file}.json) |"


def page() -> str:
    """The text of docs/benchmarks.md."""
    parts = [INTRO]
    for title, rows in TABLES.items():
        parts.append("\n".join([f"## {title}", "", *table([(row.what, row) for row in rows], "../benchmarks/results")]) + "\n")
    return "\n".join(parts)


def readme(text: str) -> str:
    """The README with the current numbers between its marks."""
    rows = [row for part in TABLES.values() for row in part]
    chosen = [(what, next(row for row in rows if row.what.startswith(begin))) for what, begin in HEADLINES]
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(table(chosen, "benchmarks/results")) + "\n\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
    README.write_text(readme(README.read_text()))
