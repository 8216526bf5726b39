"""`stoker embed`: the representations of series by a trained run of TimeHUT, as an array."""

from __future__ import annotations

from pathlib import Path

import click

from stoker._text import printable
from stoker.cli.main import PATH
from stoker.errors import OptionError


@click.command("embed", short_help="Write the representations of series by a trained run.")
@click.argument("run", type=PATH)
@click.option("--data", required=True, type=PATH, metavar="FILE", help="Series: .tsv (UCR), .ts or .arff (UEA), or a store.")
@click.option("--out", required=True, type=PATH, metavar="FILE", help="The array to write, a .npy file.")
@click.option("--overwrite", is_flag=True, help="Replace the file of --out.")
def command(run: str, data: str, out: str, overwrite: bool) -> None:
    """Write the representations of the series of DATA by RUN, a run of `stoker train timehut`: one row per series, float32.

    \b
    stoker embed runs/Chinatown --data new.tsv --out embeddings.npy
    """

    from stoker import _disk
    from stoker.recipes.timehut import load_encoder, read_series

    path = Path(out)
    if path.suffix != ".npy":
        raise OptionError(f"--out is {path}; expected a name that ends in .npy.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OptionError(f"{path} already exists. Replace the file (--overwrite), or give another name.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}. Create it first.")
    found = load_encoder(run)(read_series(data).values)
    _disk.write_file(path, _disk.npy_bytes(found))
    click.echo(f"{len(found):,} series -> {found.shape[1]:,} values each")
    click.echo(f"written: {printable(out)}")
