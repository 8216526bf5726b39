"""`stoker compare`: prove that one version of a training program is faster or better than another, or that it is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stoker.cli import command as base
from stoker.cli.brief import BriefCommand, is_brief
from stoker.cli.launchers import words_of_launcher
from stoker.errors import OptionError

if TYPE_CHECKING:
    from stoker.compare.evaluation import Evaluation
    from stoker.compare.receipt import Receipt
    from stoker.compare.sides import Version

MARK = b'content="stoker compare"'
"""What reports begin with: other files are not replaced."""
DIFFERS = 1
"""The exit code of --check where the receipt does not hold."""


class _Duration(click.ParamType[float]):
    """A time such as 90s, 10min or 2h, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        match = re.fullmatch(r"([0-9.]+)(s|min|h)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a time; expected one like 90s, 10min or 2h.", param, ctx)
        return float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]


DURATION = _Duration()


@click.command("compare", cls=BriefCommand, doing="comparing two versions of {script}", runs_script=True)
@click.argument("script", type=base.SCRIPT, required=False, metavar="BEFORE.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[AFTER.py] [ARGUMENTS]")
@base.module_option
@click.option("--patch", type=base.PATH, metavar="FILE", help="AFTER is the script with this patch.")
@click.option("--git", nargs=2, metavar="A B", help="Compare two commits, branches or tags; WORK is the files as they are now.")
@click.option("--env-after", multiple=True, metavar="NAME=VALUE", help="Set an environment variable of AFTER. May be repeated.")
@click.option("--python-before", type=base.PATH, metavar="FILE", help="The interpreter of BEFORE, with stoker in its packages.")
@click.option("--python-after", type=base.PATH, metavar="FILE", help="The interpreter of AFTER.")
@click.option("--steps", type=click.IntRange(min=4), metavar="N", help="Optimizer steps to compare. [default: more than an epoch]")
@click.option(
    "--until", type=DURATION, metavar="TIME", help="Compare what BEFORE does in 90s or 10min: some differences come late."
)
@click.option(
    "--budget", type=click.FloatRange(min=0), default=120.0, show_default=True, metavar="S",
    help="Start no round after S seconds; 0 compares results only.",
)  # fmt: skip
@click.option(
    "--seeds", type=click.IntRange(min=2), metavar="N", help="Compare a metric over N other seeds of both, by an exact test."
)
@click.option(
    "--metric", metavar="REGEX", help="The metric, in what the scripts print; its group is the number. [default: the final loss]"
)
@click.option("--higher", is_flag=True, help="A higher metric is better.")
@click.option(
    "--tolerance", type=click.FloatRange(min=0, min_open=True), metavar="X",
    help="Averaged losses, and the metric, may differ by this share.",
)  # fmt: skip
@click.option(
    "--evaluate", metavar="COMMAND", help="Judge both by this command, which gets a checkpoint as {checkpoint} and prints a number."
)
@click.option("--checkpoint", type=base.PATH, metavar="PATH", help="The file or folder that the scripts write, for --evaluate.")
@click.option(
    "--hold-out",
    multiple=True,
    type=base.PATH,
    metavar="PATH",
    help="The scripts cannot read PATH; --evaluate can. May be repeated.",
)
@click.option("--log", type=base.PATH, metavar="FILE.jsonl", help="Add each judgement of --evaluate to this file.")
@click.option("--require", default="", metavar="CLAUSES", help="Decide the exit code by clauses, like speed>=1.2,loss=equal.")
@click.option("--why", is_flag=True, help="Diagnose both versions, too: what a step spends its time on. Takes up to a minute more.")
@click.option("--check", type=base.PATH, metavar="RECEIPT.json", help="Run the comparison of a receipt again.")
@click.option("--markdown", is_flag=True, help="Print the receipt as Markdown.")
@click.option("--report", type=base.PATH, metavar="FILE.html", help="Write an HTML page with plots: one file, no scripts.")
@base.json_option
def command(
    script: str | None, arguments: tuple[str, ...], is_module: bool, why: bool, check: str | None, markdown: bool,
    report: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run two versions of a training script in turn, and say whether AFTER is faster or better with equal results.

    The scripts stay as they are, and no file of yours changes. Arguments after the scripts belong to both. Exit code 0: faster
    or better with equal results, 1: slower or worse, 2: error, 3: undecided, 4: results changed, and not shown to be better.

    \b
    stoker compare old.py new.py --epochs 3
    stoker compare --patch fix.patch train.py --lr 1e-3
    stoker compare --git main fast train.py
    stoker compare --env-after OMP_NUM_THREADS=1 train.py
    stoker compare torchrun --nproc-per-node 2 old.py new.py
    stoker compare --seeds 8 --metric 'accuracy ([0-9.]+)' --higher old.py new.py
    stoker compare --evaluate 'python evaluate.py {checkpoint}' --checkpoint model.pt --hold-out valid.pt old.py new.py
    stoker compare --json old.py new.py > receipt.json   # --json brief: at most 2 KB
    stoker compare --check receipt.json
    """
    from stoker.compare import compare
    from stoker.compare.api import compare_again
    from stoker.compare.receipt import read_receipt
    from stoker.gate.why import explain

    path = base.check_own_file("--report", report, (".html",), mark=MARK) if report is not None else None
    wrong: list[str] = []
    if check is not None:
        if script is not None:
            raise OptionError(
                f"{script} was given with --check; expected one of them: a receipt names its scripts.", parameter="check"
            )
        receipt, wrong = compare_again(read_receipt(Path(check)), quiet=base.drops_script_output(), progress=base.announce)
    else:
        before, after, words = _versions(script, arguments, is_module, options)
        names = ("steps", "until", "budget", "metric", "higher", "tolerance", "require")
        receipt = compare(
            before, after, words, seeds=options["seeds"] or 0, evaluation=_evaluation(options),
            quiet=base.drops_script_output(), progress=base.announce, **{name: options[name] for name in names},
        )  # fmt: skip
        if why or receipt.speed is not None:
            lines = explain(before, after, words, diagnose=why, progress=base.announce)
            receipt = msgspec.structs.replace(receipt, why=lines)
    _show(receipt, wrong, as_json=as_json, brief=is_brief(), markdown=markdown)
    if path is not None:
        receipt.write_html(path)
        base.announce(f"the report is {path}")
    code = (DIFFERS if wrong else 0) if check is not None else receipt.status
    if code:
        raise SystemExit(code)


def _show(receipt: Receipt, wrong: list[str], *, as_json: bool, brief: bool, markdown: bool) -> None:
    if as_json:
        values = receipt.brief() if brief else receipt.as_dict()
        click.echo(json.dumps({**values, "differs": wrong} if wrong else values, allow_nan=False))
    else:
        click.echo(receipt.markdown() if markdown else str(receipt))
        for line in wrong:
            click.echo(f"does not hold: {line}")
        if receipt.status == 0 and not (wrong or markdown):
            base.report(
                "next: the same command with --json > receipt.json, and stoker compare --check receipt.json where it matters"
            )


def _evaluation(options: dict[str, Any]) -> Evaluation | None:
    """How both are judged, if a command for it is given."""
    from stoker.compare.evaluation import Evaluation

    command, checkpoint = options["evaluate"], options["checkpoint"]
    if command is None:
        if alone := next((name for name in ("checkpoint", "hold_out", "log") if options[name]), None):
            raise OptionError(f"--{alone.replace('_', '-')} was given without --evaluate; expected both.", parameter=alone)
        return None
    if checkpoint is None:
        raise OptionError(
            "--evaluate was given without --checkpoint; expected the file or folder that the scripts write.", parameter="checkpoint"
        )
    return Evaluation(command=command, checkpoint=checkpoint, hold_out=options["hold_out"], log=options["log"])


def _versions(
    script: str | None, arguments: tuple[str, ...], is_module: bool, options: dict[str, Any]
) -> tuple[Version, Version, tuple[str, ...]]:
    """Both versions, and their arguments."""
    from stoker.compare.sides import Version

    if script is None:
        raise OptionError(
            "no script was given; expected BEFORE.py and AFTER.py, or one script with --patch, --git, --env-after or --python-after."
        )
    environments: list[dict[str, str]] = [{}, _environment(options["env_after"])]
    pythons = options["python_before"], options["python_after"]
    launcher, script, arguments = words_of_launcher(script, arguments)
    commits, patch = options["git"] or (None, None), options["patch"]
    after = script
    if not (patch or options["git"] or any(environments) or any(pythons)):
        if is_module or not arguments or not arguments[0].endswith(".py"):
            raise OptionError(
                f"{script} has nothing to be compared with; expected a second script, or --patch, --git, --env-after or --python-after."
            )
        after, arguments = arguments[0], arguments[1:]
    made = [
        Version(
            program=program, module=is_module, launcher=launcher, patch=patch if side else None, commit=commits[side],
            environment=environments[side], python=pythons[side],
        )
        for side, program in enumerate((script, after))
    ]  # fmt: skip
    return made[0], made[1], arguments


def _environment(assignments: tuple[str, ...]) -> dict[str, str]:
    for text in assignments:
        if "=" not in text:
            raise OptionError(f"--env-after is {text!r}; expected NAME=VALUE.", parameter="env_after")
    return dict(text.split("=", 1) for text in assignments)
