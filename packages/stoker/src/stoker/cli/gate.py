"""`stoker gate`: fail if a training step does more than its budget allows, counted in the unchanged script."""

from __future__ import annotations

import shlex

import click

from stoker._text import printable, printable_lines
from stoker.cli import command as base
from stoker.cli.brief import BriefCommand, print_result
from stoker.cli.launchers import ScriptCall, launch


@click.command(
    "gate",
    cls=BriefCommand,
    doing="counting what a step of {script} does",
    runs_script=True,
)
@click.argument("script", type=base.SCRIPT, metavar="SCRIPT.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@click.option(
    "--budget", type=base.PATH, metavar="FILE.json", required=True, help="The budget: a small file to commit with the code."
)
@click.option("--write", is_flag=True, help="Write the budget from this run.")
@base.module_option
@base.json_option
@click.pass_context
def command(
    ctx: click.Context, script: str, arguments: tuple[str, ...], budget: str, write: bool, is_module: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT.py unchanged for some steps, count what a step does, and compare the counts with a budget.

    Counted are operations, floating-point operations, kernels, syncs, copies, allocations and their bytes: integers that do not
    depend on how busy the machine is. Exit code 0: within the budget, 1: a count grew, 2: error.

    \b
    stoker gate --budget budget.json --write train.py --epochs 1
    stoker gate --budget budget.json train.py --epochs 1
    """
    script, arguments, is_module = launch(ctx, ScriptCall(script, arguments, is_module), in_workers=False)
    from stoker.gate.gate import gate_script

    gate = gate_script(
        script,
        arguments,
        budget=budget,
        write=write,
        module=is_module,
        quiet=base.drops_script_output(),
    )
    if write:
        base.report(f"wrote {budget}")
    if as_json:
        print_result(gate.as_dict())
    else:
        click.echo(printable_lines(str(gate)))
    if gate.ok and not as_json:
        called = printable(shlex.join([*(["-m"] if is_module else []), script, *arguments]))
        base.report(f"next: stoker gate --budget {budget} {called}   (in CI)" if write else f"next: stoker diagnose {called}")
    if not gate.ok:
        raise SystemExit(1)
