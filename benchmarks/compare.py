"""`python -m benchmarks.compare` (`make compare`): a recipe against the way that it replaces, side by side on the machine at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker._text import printable
from stoker.cli.command import PATH

if TYPE_CHECKING:
    from benchmarks.comparison import Line


@click.group("compare")
def command() -> None:
    """Measure the authors' way and ours in turn, here and now.

    Figures of other machines are other ones; ratios are taken within one run.
    """


@command.command("time-moe")
@click.option("--size", metavar="SIZE", help="50m, 200m or tiny (default: 50m on a GPU, else tiny).")
@click.option("--length", type=click.IntRange(min=16), metavar="N", help="Positions of a row (default: 2048 on a GPU, else 512).")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Rows of a batch (default: 8 on a GPU, else 4).")
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="Times that both are measured in turn (default: 5).")
@click.option("--out", type=PATH, metavar="FILE", help="Save a figure (.png or .svg), and all numbers beside it (.json).")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, for programs.")
def time_moe(
    size: str | None, length: int | None, batch_size: int | None, rounds: int | None, out: str | None, as_json: bool
) -> None:
    """Time-MoE: samples, steps of the model, and whole training runs on short series.

    \b
    python -m benchmarks.compare time-moe
    python -m benchmarks.compare time-moe --size 50m --length 256 --out bench.png
    """
    from benchmarks import compare_time_moe as bench
    from stoker.errors import OptionError
    from stoker.recipes.time_moe import SIZES
    from stoker.train.plots import check_plot

    if size is not None and size not in SIZES:
        raise OptionError(f"--size is {size!r}; expected one of {', '.join(SIZES)}.")
    if out is not None:
        check_plot(out)
    plan = bench.Plan.fitting(size=size, length=length, batch_size=batch_size, rounds=rounds)
    if plan.length > plan.shape.max_position:
        raise OptionError(f"--length is {plan.length:,}, but the model has {plan.shape.max_position:,} positions.")
    scratch = Path(f"{out}.data" if out is not None else "bench-time-moe.data")
    if scratch.exists():
        raise OptionError(f"{scratch} exists; the bench puts its data there for a while. Move it away.")
    lines = list(bench.run(plan, scratch, _report))
    _show(lines, bench="time-moe", title="Time-MoE", plan=vars(plan), out=out, as_json=as_json)


@command.command("tfa")
@click.option(
    "--batch-size", type=click.IntRange(min=2), metavar="N", help="Windows of a batch (default: 1024 on a GPU, else 256)."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, metavar="N", help="Times that both are measured in turn."
)
@click.option("--out", type=PATH, metavar="FILE", help="Save a figure (.png or .svg), and all numbers beside it (.json).")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, for programs.")
def tfa(batch_size: int | None, rounds: int, out: str | None, as_json: bool) -> None:
    """TFA: labels a second of its authors' loop, of the same model in the recipe, and of the banded one.

    \b
    python -m benchmarks.compare tfa
    python -m benchmarks.compare tfa --batch-size 1024 --out bench.png
    """
    import torch

    from benchmarks import compare_tfa as bench
    from stoker.train.plots import check_plot

    if out is not None:
        check_plot(out)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = {"batch": batch_size or (1024 if device == "cuda" else 256), "rounds": rounds, "device": device}
    lines = list(bench.run(**plan, report=_report))  # type: ignore[arg-type]
    _show(lines, bench="tfa", title="TFA", plan=plan, out=out, as_json=as_json)


def _report(text: str) -> None:
    click.echo(f"  {text} …", err=True)


def _show(lines: Sequence[Line], *, bench: str, title: str, plan: dict[str, Any], out: str | None, as_json: bool) -> None:
    """The table; and the plot and the record, where asked for."""
    from benchmarks import comparison
    from stoker import _disk
    from stoker.train.plots import save_figure

    names = ("authors' way", "stoker")
    where = comparison.machine()
    reported = f"{plan['rounds']} rounds, one after the other; {where['gpu'] or 'one thread of a CPU'}, torch {where['torch']}"
    record = comparison.as_record(lines, bench=bench, plan=plan, **where)
    if out is not None:
        save_figure(out, comparison.draw_bars(lines, title=f"{title}: the authors' way and stoker's", names=names, note=reported))
        _disk.write_file(Path(out).with_suffix(".json"), record.encode(), durable=False)
    if as_json:
        click.echo(record, nl=False)
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(comparison.make_table(lines, title=f"{title}, before and after", names=names))
    for line in lines:
        console.print(f"{line.what}: {line.note}", soft_wrap=True, style="dim")
    console.print(reported, soft_wrap=True)
    if out is not None:
        click.echo(f"written: {printable(out)}, {printable(str(Path(out).with_suffix('.json')))}")


if __name__ == "__main__":
    from stoker.errors import StokerError

    try:
        command()
    except StokerError as error:
        raise SystemExit(f"compare: {error}") from None
