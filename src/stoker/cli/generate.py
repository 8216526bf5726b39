"""`stoker generate`: new subjects with their events, by a trained run of the recipe for tabular sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stoker._text import printable
from stoker.cli.main import PATH
from stoker.errors import OptionError


@click.command("generate", short_help="Write new subjects with their events by a trained run.")
@click.argument("run", type=PATH)
@click.option("--subjects", type=click.IntRange(min=0, max=2**40), metavar="N", help="How many. [default: as many as were learned]")
@click.option("--out", required=True, type=PATH, metavar="FILE", help="The table to write: .parquet or .csv.")
@click.option("--context", type=PATH, metavar="FILE", help="Contexts to generate for, with their keys. [default: generated ones]")
@click.option("--context-out", type=PATH, metavar="FILE", help="Also write the generated contexts.")
@click.option("--given", type=PATH, metavar="FILE", help="First events of subjects, or some columns of them, which are kept.")
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
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest values up to this probability.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N. [default: a GPU if there is one]")
@click.option("--overwrite", is_flag=True, help="Replace the file of --out.")
def command(
    run: str, subjects: int | None, out: str, context: str | None, context_out: str | None, device: str | None, overwrite: bool,
    seed: int, rebalance: tuple[str, ...], impute: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Write new subjects with their events by RUN, a run of `stoker train tabular`. The same seed gives the same table.

    \b
    stoker generate runs/events --subjects 10000 --out synthetic.parquet
    stoker generate runs/events --given first_events.parquet --temperature 0.9 --out continued.parquet
    stoker generate runs/users --given incomplete.parquet --impute age --out complete.parquet
    """
    from stoker.recipes.tabular import Synthesizer
    from stoker.recipes.tabular.tables import write_table

    paths = [
        _check(option, name, overwrite) for option, name in (("--out", out), ("--context-out", context_out)) if name is not None
    ]
    shares = _shares(rebalance)
    model, contexts = Synthesizer.load(run, device=device), None
    if context_out is not None:
        if context is not None:
            raise OptionError("--context-out is for generated contexts, but --context gives them. Leave one of them out.")
        count = subjects if subjects is not None else model.trained.spec.num_subjects
        spec = model.trained.spec.context
        names = [] if spec is None else [column.name for column in spec.columns]
        of_context = {name: one for name, one in shares.items() if name in names}
        contexts = model.sample_context(count, rebalance=of_context, seed=seed)
    table = model.sample(subjects, context=context, rebalance=shares, impute=impute, seed=seed, **options)
    if contexts is not None:  # both are there before the first is written
        write_table(contexts, paths[1])
    write_table(table, paths[0])
    click.echo(f"{len(table):,} rows")
    for path in paths:
        click.echo(f"written: {printable(str(path))}")


def _shares(given: tuple[str, ...]) -> dict[str, dict[Any, float]]:
    """Shares of values by column, of COLUMN=VALUE:SHARE; an empty value is a missing one."""
    found: dict[str, dict[Any, float]] = {}
    for one in given:
        column, equals, rest = one.partition("=")
        value, colon, share = rest.rpartition(":")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if not (column and equals and colon) or not 0 <= number <= 1:
            raise OptionError(
                f"--rebalance is {one!r}; expected COLUMN=VALUE:SHARE with a share from 0 to 1, such as segment=gold:0.5."
            )
        found.setdefault(column, {})[value or None] = number
    return found


def _check(option: str, name: str, overwrite: bool) -> Path:
    path = Path(name)
    if path.suffix not in (".parquet", ".csv"):
        raise OptionError(f"{option} is {path}; expected a name that ends in .parquet or .csv.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OptionError(f"{path} already exists. Replace the file (--overwrite), or give another name.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}. Create it first.")
    return path
