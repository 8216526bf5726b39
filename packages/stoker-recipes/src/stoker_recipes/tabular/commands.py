"""What tabular sequences register with Stoker: `stoker train tabular`, and `stoker tabular generate` and `quality`."""

from __future__ import annotations

import contextlib
import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stoker.cli.command as base
import stoker.cli.training as shared
from stoker.errors import OptionError
from stoker.extend import Recipe, disk, printable

if TYPE_CHECKING:
    from stoker_recipes.tabular.training import TrainedTabular

SETTINGS = "stoker_recipes.tabular.settings:TabularSettings"


@click.command(
    "tabular", cls=base.Command, doing="training with {target|resume}", short_help="Learn a table of events, to generate others."
)
@click.option(
    "--target",
    type=base.TABLE,
    multiple=True,
    metavar="FILE",
    help="Events, or single rows, as `stoker pack` reads them. A folder or a pattern for several files, or repeat it.",
)
@click.option("--key", metavar="COLUMN", help="Column that names the subject of an event. [default: every row is a subject]")
@click.option("--context", type=base.TABLE, metavar="FILE", help="Facts of the subjects, one row each.")
@click.option("--encoding", multiple=True, metavar="COLUMN=KIND", help="Kind of a column, such as place=lat_long. May be repeated.")
@shared.settings_option(SETTINGS)
@base.folder_option
@base.resume_option
@base.overwrite_option("Replace an earlier run of this recipe in the folder; other files stay.")
@base.device_option
@base.json_option
def train(
    target: tuple[str, ...], encoding: tuple[str, ...], overrides: tuple[str, ...], folder: str | None, resume: str | None,
    overwrite: bool, device: str | None, as_json: bool, **tables: Any,
) -> None:  # fmt: skip
    """Learn the events of subjects, such as the purchases of users, so that `stoker tabular generate` can make new ones.

    Values that fewer than 5 subjects have are not learned, unless `protect` is false. Training stops early by the validation loss
    of subjects that were held out. `noise` trains with differential privacy.

    \b
    stoker train tabular --target events.parquet --key user_id --context users.parquet --set epochs=20
    stoker tabular generate runs/events synthetic.parquet --subjects 10000
    """
    shared.check_call(target, "--target FILE", resume=resume, overwrite=overwrite)
    kinds = dict(pair.rpartition("=")[::2] for pair in encoding)
    if "" in kinds:
        raise click.UsageError(f"--encoding is {encoding[0]!r}; expected COLUMN=KIND, such as place=lat_long.")
    from stoker_recipes.tabular import training

    first = Path(target[0] if target else "")
    first = first.absolute().parent if glob.has_magic(first.name) else first  # of a pattern
    where = Path(resume or folder or f"runs/{first.stem}")
    settings = shared.read_settings(overrides, SETTINGS)
    if target:
        settings |= {**tables, "encodings": kinds, "overwrite": overwrite}
    source = target[0] if len(target) == 1 else list(target)
    done = shared.train_or_resume(training, source, where, settings, device=device, say=base.say)
    _show(done, where, as_json=as_json)


def _show(done: TrainedTabular, folder: Path, *, as_json: bool) -> None:
    result = done.result
    assert result is not None
    if as_json:
        values = shared.values_of(result, "stopped", "step", "epoch", "metrics", "best", "best_step", "seconds")
        base.print_json({"folder": str(folder), **values})
        return
    ended = shared.STOPPED[result.stopped]
    click.echo(f"{'trained':<10} {result.epoch:,} epochs, {result.step:,} updates in {result.seconds:,.1f} s ({ended})")
    click.echo(f"{'loss':<10} {result.best:.4f} nats per event on held-out subjects")
    click.echo(printable(f"run        {folder}   next: stoker tabular generate {folder} synthetic.parquet --subjects 1000"))


@click.group("tabular", cls=base.CommandGroup, short_help="Generate and compare tables of events.")
def tabular() -> None:
    """Generate tables of events with a run of `stoker train tabular`, and compare them with the real ones."""


@tabular.command("generate", cls=base.Command, doing="generating events by {run}")
@click.argument("run", type=base.PATH)
@click.argument("out", type=base.PATH)
@click.option("--subjects", type=click.IntRange(min=0, max=2**40), metavar="N", help="How many. [default: as many as were learned]")
@click.option(
    "--context", type=base.TABLE, metavar="FILE", help="Contexts to generate for, with their keys. [default: generated ones]"
)
@click.option("--context-out", type=base.PATH, metavar="FILE", help="Also write the generated contexts.")
@click.option("--given", type=base.TABLE, metavar="FILE", help="First events of subjects, or some columns of them, which are kept.")
@click.option(
    "--rebalance",
    multiple=True,
    metavar="COLUMN=VALUE:SHARE",
    help="The share of a value, such as segment=gold:0.5. Repeat it for others.",
)
@click.option(
    "--impute",
    multiple=True,
    metavar="COLUMN",
    help="A column without missing values; those of --given are filled. Repeat it for others.",
)
@click.option("--temperature", type=float, default=1.0, show_default=True, help="Below 1 makes likely values likelier.")
@base.seed_option(0)
@base.device_option
@base.overwrite_option("Replace the files.")
@base.json_option
def generate(
    run: str, subjects: int | None, out: str, context: str | None, context_out: str | None, device: str | None, overwrite: bool,
    seed: int, as_json: bool, rebalance: tuple[str, ...], impute: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Write new subjects with their events to OUT (.parquet or .csv) by RUN, a run of `stoker train tabular`.

    The same seed gives the same table.

    \b
    stoker tabular generate runs/events synthetic.parquet --subjects 10000
    stoker tabular generate runs/events continued.parquet --given first_events.parquet --temperature 0.9
    stoker tabular generate runs/users complete.parquet --given incomplete.parquet --impute age
    """
    from stoker_recipes.tabular import Synthesizer
    from stoker_recipes.tabular.files import write_table

    paths = [
        base.check_new_file(option, name, (".parquet", ".csv"), overwrite=overwrite)
        for option, name in (("OUT", out), ("--context-out", context_out))
        if name is not None
    ]
    shares = _shares(rebalance)
    model, contexts = Synthesizer.load(run, device=device), None
    if context_out is not None:
        if context is not None:
            raise OptionError("--context-out is for generated contexts, but --context gives them. Leave one of them out.")
        count = subjects if subjects is not None else model.trained.spec.num_subjects
        spec = model.trained.spec.context
        names = [] if spec is None else [column.name for column in spec.columns]
        of_context = {name: share for name, share in shares.items() if name in names}
        contexts = model.sample_context(count, rebalance=of_context, seed=seed)
    table = model.sample(subjects, context=context, rebalance=shares, impute=impute, seed=seed, **options)
    new = [path for path in paths if not path.exists()]
    try:
        tables = [sampled for sampled in (contexts, table) if sampled is not None]
        for path, sampled in zip(reversed(paths), tables, strict=True):
            write_table(sampled, path)
    except BaseException:  # contexts without events would be half of a result
        for path in new:
            with contextlib.suppress(OSError):  # the first error is the one to report
                disk.remove_file(path)
        raise
    if as_json:
        base.print_json({"path": out, "rows": len(table)})
        return
    click.echo(f"{len(table):,} rows")
    for path in paths:
        base.report(f"written: {path}")
    base.report(printable(f"next: stoker tabular quality REAL {out}"))


def _shares(words: tuple[str, ...]) -> dict[str, dict[Any, float]]:
    """Shares of values by column, of COLUMN=VALUE:SHARE; an empty value is a missing one."""
    shares: dict[str, dict[Any, float]] = {}
    for word in words:
        column, equals, rest = word.partition("=")
        value, colon, share = rest.rpartition(":")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if not (column and equals and colon) or not 0 <= number <= 1:
            raise OptionError(
                f"--rebalance is {word!r}; expected COLUMN=VALUE:SHARE with a share from 0 to 1, such as segment=gold:0.5."
            )
        shares.setdefault(column, {})[value or None] = number
    return shares


@tabular.command("quality", cls=base.Command, doing="comparing {synthetic} with {real}")
@click.argument("real", type=base.TABLE)
@click.argument("synthetic", type=base.TABLE)
@click.option("--key", metavar="COLUMN", help="The column of subjects. [default: each row is a subject]")
@click.option(
    "--holdout",
    type=base.TABLE,
    metavar="FILE",
    help="Real data that the model has not seen: the reference for classifiers and distances.",
)
@click.option("--report", type=base.PATH, metavar="FILE", help="Write an HTML report.")
@base.overwrite_option("Replace the file of --report.")
@base.json_option
def quality(real: str, synthetic: str, report: str | None, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Compare SYNTHETIC data with REAL data by mostlyai-qa: accuracy, similarity and distances.

    Contexts are compared in Python: `stoker_recipes.tabular.quality(context=...)`.

    \b
    stoker tabular quality real.parquet synthetic.parquet --key user_id --report quality.html
    """
    from stoker_recipes.tabular import quality

    path = None if report is None else base.check_new_file("--report", report, (".html",), overwrite=overwrite)
    metrics = quality(real, synthetic, report=path, **options)
    if report is not None:
        base.announce(f"the report is {report}")
    if as_json:
        base.print_json(metrics)
        return
    from rich.console import Console

    table = base.new_table()
    table.add_column("group")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for group, values in metrics.items():
        for name, value in values.items():
            table.add_row(group, name.replace("_", " "), f"{value:.4f}")
    Console().print(table)
    if report is None:
        base.report("next: the same command with --report quality.html")
    else:
        base.report(printable(f"next: open {report} in a browser"))


RECIPE = Recipe(commands={"train": train})
