"""`stoker diagnose`: find the bottleneck of a training script by running it unchanged."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from stoker.cli import command as base
from stoker.cli.brief import BriefCommand, print_result
from stoker.cli.launchers import LAUNCHED, ScriptCall, launch
from stoker.errors import OptionError
from stoker.sandbox import CHOICES, VARIABLE

REPORT_MARK, PATCH_MARK = b'content="stoker diagnose"', b"# written by stoker diagnose --apply"
"""What reports and patches begin with: others are not replaced."""
NOTHING = 3
"""The exit code without a verdict, and without the patch that --apply asks for."""


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


@click.command("diagnose", cls=BriefCommand, doing="measuring the steps of {script}", runs_script=True)
@click.argument("script", type=base.SCRIPT, metavar="SCRIPT.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@base.module_option
@click.option("--try", "tries", is_flag=True, help="Try each fix of NEXT in a fresh process, and compare its losses.")
@click.option("--apply", "patch", type=base.PATH, metavar="FILE.patch", help="Write the fixes that gain as a patch of your files.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="With --try and --apply: start no run after S seconds.",
)
@click.option("--report", type=base.PATH, metavar="FILE.html", help="Write an HTML report: one file, no scripts.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Start no measurement after S seconds.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=90.0,
    show_default=True,
    metavar="S",
    help="End the script S seconds after its first step, whatever it does, and report what is known.",
)
@click.option(
    "--sandbox",
    type=click.Choice(CHOICES),
    help="How your files are protected; `require` refuses to run the script unprotected. Default: the first mode that is permitted.",
)
@base.json_option
@click.option(
    "--thresholds",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_thresholds,
    help="Print every threshold of the rule (name, value, meaning) and exit.",
)
@click.pass_context
def command(
    ctx: click.Context, script: str, arguments: tuple[str, ...], is_module: bool, tries: bool, patch: str | None, budget: float | None,
    report: str | None, seconds: float | None, time_limit: float, sandbox: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT.py unchanged, stop it when enough is known, and name the bottleneck, the evidence, and what to do next.

    What the script prints goes to stderr, or nowhere with -q. Exit code 0: a verdict, 2: error, 3: no verdict, or no patch
    with --apply (0 if a launcher is named).

    \b
    stoker diagnose train.py --epochs 1
    stoker diagnose -m package.train --config small.yaml
    stoker diagnose --try --report why.html train.py
    stoker diagnose --apply faster.patch train.py
    stoker diagnose --json train.py > finding.json
    stoker diagnose torchrun --nproc-per-node 2 train.py
    stoker diagnose accelerate launch train.py
    """
    script, arguments, is_module = launch(ctx, ScriptCall(script, arguments, is_module))
    from stoker.diagnose.api import diagnose_script
    from stoker.diagnose.finding import show
    from stoker.diagnose.report import check_path, write_report

    if sandbox is not None:
        os.environ[VARIABLE] = sandbox
    path = base.check_own_file("--report", str(check_path(Path(report))), (), mark=REPORT_MARK) if report is not None else None
    patch_path = base.check_own_file("--apply", patch, (".patch", ".diff"), mark=PATCH_MARK) if patch is not None else None
    processes, rank = int(os.environ.get("WORLD_SIZE") or 1), int(os.environ.get("RANK") or 0)
    if (tries or patch) and processes > 1:
        option = "--try" if tries else "--apply"
        raise OptionError(f"{option} was given to {processes} processes; expected one. Run {option} without torchrun.")
    if budget is not None and not (tries or patch):
        raise OptionError(
            "--budget was given without --try or --apply; expected one of them. --seconds bounds a diagnosis.", parameter="budget"
        )
    finding = diagnose_script(
        script,
        arguments,
        module=is_module,
        quiet=base.drops_script_output(),
        seconds=seconds,
        time_limit=time_limit,
        with_compile=tries,
    )
    if rank:
        return  # rank 0 reports for all processes

    # Quiet: the output of the script has been shown once, and it now runs up to a dozen times.
    if tries:
        from stoker.diagnose.trials import try_advice

        finding = try_advice(finding, script, arguments, module=is_module, quiet=True, at_most=budget, tell=base.announce)
    if patch_path is not None:
        from stoker.diagnose.patches import offer_patch

        finding = offer_patch(
            finding, script, arguments, path=patch_path, module=is_module, quiet=True, at_most=budget, tell=base.announce
        )
    if as_json:
        print_result(finding.as_dict())
    else:
        show(finding)
    if path is not None:
        write_report(finding, path, title=shlex.join([*(["-m"] if is_module else []), script, *arguments]))
        base.announce(f"the report is {path}")
    nothing = finding.verdict == "none" or (patch_path is not None and (finding.patch is None or finding.patch.file is None))
    if nothing and LAUNCHED not in os.environ:  # launchers print a traceback for any code but 0
        raise SystemExit(NOTHING)
