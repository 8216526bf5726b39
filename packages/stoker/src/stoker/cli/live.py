"""`stoker live`: running and finished runs on one local page."""

from __future__ import annotations

import signal
import sys

import click

from stoker._text import printable
from stoker.cli import command as base


@click.command("live", cls=base.Command, doing="reading the runs of {folder}")
@click.argument("folder", default="runs", type=base.PATH)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. [default: any that is free]")
@click.option("--save", type=base.PATH, metavar="FILE", help="Write the page as one HTML file instead, and end.")
@base.json_option
def command(folder: str, port: int, save: str | None, as_json: bool) -> None:
    """Show the runs below FOLDER (by default: runs) on a page that updates itself.

    The page shows losses, speed and its ceiling, wait for data, memory, age of the checkpoint, events of the NaN guard, slowdowns, and
    what differs between runs. It reads the files of runs only: nothing is added to a training run. Only this machine can open it.
    With --json the address is printed as a document at the start, and the page is served until Ctrl-C.

    \b
    stoker live runs/
    stoker live runs/ --save runs.html
    """
    from stoker.live.server import Server, save_page

    if save is not None:
        page = base.check_own_file("--save", save, (".html", ".htm"), mark=b'content="stoker live"')
        number = save_page(folder, page)
        if as_json:
            base.print_json({"path": save, "runs": number})
            return
        click.echo(f"{printable(save)}: {number} run{'s' * (number != 1)}.")
        base.report(printable(f"next: open {save} in a browser"))
        return
    server = Server(folder, port=port)
    server.start()
    if as_json:
        base.print_json({"folder": folder, "address": server.address})
    else:
        click.echo(f"{printable(folder)}: {server.address}")
    sys.stdout.flush()  # a program reads the address from a pipe
    base.announce("Ctrl-C ends it.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        base.announce("ended.")
        base.report(printable(f"next: stoker runs {folder}"))
    finally:
        server.close()
