"""`stoker diagnose`: find the bottleneck of a training script by running it unchanged."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from stoker import _disk
from stoker._text import printable
from stoker.cli.main import PATH
from stoker.errors import OptionError

NO_VERDICT = 3
"""The exit code without a verdict."""
EXAMPLE = "stoker diagnose train.py -- --epochs 1"


class _Command(click.Command):
    """A command that takes the script's own arguments only after --, so that none is taken for one of its own, or the reverse."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ours, theirs = args[:at], args[at + 1 :]
        try:
            rest = super().parse_args(ctx, _with_json_path(ours))
        except click.NoSuchOption as error:
            raise click.UsageError(f"{error.format_message()} Put options of the script after --, as in: {EXAMPLE}", ctx) from error
        if stray := ctx.params.get("arguments"):
            raise click.UsageError(
                f"{stray[0]!r} is not expected before --. Put arguments of the script after it, as in: {EXAMPLE}", ctx
            )
        ctx.params["arguments"] = tuple(theirs)
        return rest


def _with_json_path(args: list[str]) -> list[str]:
    """Give --json its value: the next argument if that is a name of a JSON file, and otherwise `-` for stdout."""
    found: list[str] = []
    for one in args:
        if found and found[-1] == "--json" and one.endswith(".json"):
            found[-1] = f"--json={one}"
        else:
            found.append(one)
    return ["--json=-" if one == "--json" else one for one in found]


def _checked(path: Path) -> Path:
    """Check the path of a JSON file before anything is measured."""
    if path.suffix != ".json":
        raise OptionError(f"--json is {path}; expected a file that ends in '.json', or no value to print the finding.")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} is not a folder, so {path.name} cannot be written there. Create it first.")
    return path


def _checked_patch(path: Path) -> Path:
    """Check the path of a patch before anything is measured: it must not be the script."""
    if path.suffix not in (".patch", ".diff"):
        raise OptionError(f"--apply is {path}; expected the name of the patch to write, which ends in '.patch' or '.diff'.")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} is not a folder, so {path.name} cannot be written there. Create it first.")
    return path


def _print_thresholds(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print every threshold of the rule, and exit."""
    if not value or ctx.resilient_parsing:
        return
    from stoker.diagnose.thresholds import RULE

    rows = RULE.table()
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, number, meaning in rows:
        click.echo(f"{name:<{names}}  {number:>{values}}  {meaning}")
    ctx.exit()


@click.command("diagnose", cls=_Command, short_help="Find the bottleneck of a training script.")
@click.argument("script", type=PATH, metavar="SCRIPT.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option("--try", "tries", is_flag=True, help="Try each fix of NEXT in a fresh process, and compare its losses.")
@click.option("--apply", "patch", type=PATH, metavar="FILE.patch", help="Write the fixes that gain as a patch of your files.")
@click.option(
    "--budget", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Of --try and --apply: start no run after S seconds."
)
@click.option("--report", type=PATH, metavar="FILE.html", help="Write an HTML report: one file, no scripts.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Start no measurement after S seconds.")
@click.option("--json", "json_path", type=PATH, metavar="[FILE.json]", help="Print the finding as JSON, or write it to a file.")
@click.option("--quiet", "-q", is_flag=True, help="Do not show what the script prints.")
@click.option(
    "--thresholds",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_thresholds,
    help="Print every threshold of the rule (name, value, meaning) and exit.",
)
def command(
    script: str,
    arguments: tuple[str, ...],
    is_module: bool,
    tries: bool,
    patch: str | None,
    budget: float | None,
    report: str | None,
    seconds: float | None,
    json_path: str | None,
    quiet: bool,
) -> None:
    """Run SCRIPT.py unchanged, stop it when enough is known, and name the bottleneck, the evidence, and what to do next.

    What the script prints goes to stderr. Exit code 0: a verdict, 2: error, 3: no verdict.

    \b
    stoker diagnose train.py -- --epochs 1
    stoker diagnose -m package.train -- --config small.yaml
    stoker diagnose train.py --try --report why.html
    stoker diagnose train.py --apply faster.patch
    stoker diagnose train.py --json finding.json
    torchrun --nproc-per-node 2 -m stoker diagnose train.py
    """
    from stoker.diagnose.api import diagnose_script
    from stoker.diagnose.finding import show
    from stoker.diagnose.report import check_path, write_report

    path = check_path(Path(report)) if report is not None else None
    patch_path = _checked_patch(Path(patch)) if patch is not None else None
    json_file = _checked(Path(json_path)) if json_path not in (None, "-") else None
    processes, rank = int(os.environ.get("WORLD_SIZE") or 1), int(os.environ.get("RANK") or 0)
    if (tries or patch) and processes > 1:
        option = "--try" if tries else "--apply"
        raise OptionError(f"{option} was given to {processes} processes; expected one. Run {option} without torchrun.")
    if budget is not None and not (tries or patch):
        raise OptionError("--budget was given without --try or --apply; expected one of them. --seconds bounds a diagnosis.")
    finding = diagnose_script(script, arguments, module=is_module, quiet=quiet, seconds=seconds)
    if rank:
        return  # the first of several processes reports for all

    def tell(text: str) -> None:
        if not quiet:
            click.echo(f"stoker: {printable(text)}", err=True)

    # The script's output has been shown once, and it now runs a dozen times.
    if tries:
        from stoker.diagnose.trials import try_advice

        finding = try_advice(finding, script, arguments, module=is_module, quiet=True, at_most=budget, tell=tell)
    if patch_path is not None:
        from stoker.diagnose.patches import offer_patch

        finding = offer_patch(finding, script, arguments, path=patch_path, module=is_module, quiet=True, at_most=budget, tell=tell)
    values = json.loads(json.dumps(finding.as_dict()), parse_constant=lambda _: None)  # null for NaN and infinity
    if json_path == "-":
        click.echo(json.dumps(values, allow_nan=False))
    else:
        show(finding)
    if json_file is not None:
        _disk.write_file(json_file, json.dumps(values, allow_nan=False).encode() + b"\n")
        click.echo(f"stoker: the finding is {printable(str(json_file))}", err=True)
    if path is not None:
        write_report(finding, path, title=shlex.join([*(["-m"] if is_module else []), script, *arguments]))
        click.echo(f"stoker: the report is {printable(str(path))}", err=True)
    if finding.verdict == "none":
        raise SystemExit(NO_VERDICT)
