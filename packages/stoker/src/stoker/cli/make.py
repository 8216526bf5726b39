"""`stoker make`: write made data in the layout that a recipe reads."""

from __future__ import annotations

import click

from stoker._text import printable
from stoker.cli import command as base

COUNT = click.IntRange(min=1, max=2**31)


@click.group("make", cls=base.CommandGroup)
def command() -> None:
    """Make data in the layout that a recipe reads, with a signal that its model can learn.

    \b
    stoker make icecube icecube/ --files 66 --events 1500
    """


@command.command(
    "icecube", cls=base.Command, doing="making events in {folder}", writes="folder", short_help="Make neutrino events."
)
@click.argument("folder", type=base.PATH)
@click.option("--files", type=COUNT, default=66, show_default=True, help="Number of files with pulses.")
@click.option("--events", type=COUNT, default=1500, show_default=True, help="Events per file.")
@base.seed_option(0, "Another seed makes other events.")
@click.option("--drift", is_flag=True, help="Sort events by azimuth from file to file: the worst case for a weak shuffle.")
@base.choice_option("--split", choices=["train", "test"], help="test: files without directions.")
def icecube(folder: str, files: int, events: int, seed: int, drift: bool, split: str) -> None:
    """Write train_meta.parquet, train/batch_*.parquet and sensor_geometry.csv to FOLDER, as the IceCube competition has them.

    \b
    stoker make icecube icecube/                              # many small files
    stoker make icecube few/ --files 5 --events 18000         # few large files
    stoker make icecube icecube/ --split test --files 1
    stoker pack icecube/ ice.stoker --recipe icecube
    """
    from stoker_recipes.icecube import make_events

    with base.bar("pulses") as show:
        made = make_events(
            folder, files=files, events=events, seed=seed, drift=float(drift), split=split, progress=show  # type: ignore[arg-type]
        )  # fmt: skip
    click.echo(f"wrote {files * events:,} events in {files:,} files: {printable(str(made))}")
