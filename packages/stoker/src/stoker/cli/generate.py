"""`stoker generate`: new subjects with their events, by a trained run of the recipe for tabular sequences."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

from stoker import _disk
from stoker.cli import command as base
from stoker.errors import OptionError


@click.command("generate", cls=base.Command, doing="generating events by {run}", writes="out")
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
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw from the likeliest values up to this probability.")
@base.seed_option(0)
@base.device_option
@base.overwrite_option("Replace the files.")
@base.json_option
def command(
    run: str, subjects: int | None, out: str, context: str | None, context_out: str | None, device: str | None, overwrite: bool,
    seed: int, as_json: bool, rebalance: tuple[str, ...], impute: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Write new subjects with their events to OUT (.parquet or .csv) by RUN, a run of `stoker train tabular`.

    The same seed gives the same table.

    \b
    stoker generate runs/events synthetic.parquet --subjects 10000
    stoker generate runs/events continued.parquet --given first_events.parquet --temperature 0.9
    stoker generate runs/users complete.parquet --given incomplete.parquet --impute age
    """
    from stoker_recipes.tabular import Synthesizer
    from stoker_recipes.tabular.tables import write_table

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
        of_context = {name: one for name, one in shares.items() if name in names}
        contexts = model.sample_context(count, rebalance=of_context, seed=seed)
    table = model.sample(subjects, context=context, rebalance=shares, impute=impute, seed=seed, **options)
    new = [path for path in paths if not path.exists()]
    try:
        for path, one in zip(reversed(paths), [one for one in (contexts, table) if one is not None], strict=True):
            write_table(one, path)
    except BaseException:  # contexts without events would be half of a result
        for path in new:
            with contextlib.suppress(OSError):  # the first error is the one to report
                _disk.remove_file(path)
        raise
    if as_json:
        click.echo(json.dumps({"path": out, "rows": len(table)}))
        return
    click.echo(f"{len(table):,} rows")
    for path in paths:
        base.report(f"written: {path}")


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
