"""The report: a finding as one HTML file for people, which needs nothing beside it and holds no script.

The law: whatever a program, a path or an error is called, it is shown as text. All markup is in the template, Jinja escapes every
value, letters that steer or hide are written as escapes, and a policy in the page forbids scripts and requests.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stoker
from stoker._disk import write_file
from stoker._text import printable
from stoker.diagnose import render as picture
from stoker.diagnose import render as tables
from stoker.diagnose import render as words
from stoker.diagnose.measurements import Finding
from stoker.errors import OptionError

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "report.html.jinja"
SUFFIX = ".html"
MOST_CAUSES = 4


def check_path(path: Path) -> Path:
    """The path of a report, refused before anything is measured if it cannot be written."""
    if path.suffix != SUFFIX:
        raise OptionError(f"{path} has the ending {path.suffix!r}; a report is a file that ends in {SUFFIX}.")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} is not a folder, so the report {path.name} cannot be written there. Make it first.")
    return path


def write_report(finding: Finding, path: str | Path, *, title: str) -> Path:
    """Write the report of a finding; `title` says what was diagnosed, such as the command."""
    path = check_path(Path(path))
    write_file(path, render(finding, title=title).encode(), durable=False)
    return path


def render(finding: Finding, *, title: str, environment: Environment | None = None) -> str:
    """The page; the same finding gives the same bytes."""
    template = (environment or make_environment()).get_template(TEMPLATE)
    return template.render(title=title, **_values(finding))


@cache
def make_environment() -> Environment:
    """The environment of the template: every value is escaped, and one that is missing is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("stoker.diagnose")
    return Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: Any) -> Any:
    """A value as it stands in the page, before it is escaped."""
    from markupsafe import Markup

    if isinstance(value, Markup):  # the output of a macro, whose values have been here before
        return value
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))


def _values(finding: Finding) -> dict[str, Any]:
    """All that the template shows."""
    measured = finding.measurements
    todo, one = picture.tries(finding.next)
    return {
        "version": stoker.__version__,
        "finding": finding,
        "verdict": words.TITLES.get(finding.verdict, finding.verdict),
        "headline": finding.causes[0].sentence if finding.causes else finding.why,
        "place": words.place_beside(finding),
        "certainty": words.certainty(finding),
        "others": [(words.TITLES.get(cause.verdict, cause.verdict), cause) for cause in finding.causes[1:MOST_CAUSES]],
        "percent": words.percent,
        "times": words.times,
        "ladder": picture.ladder(finding),
        "tries": todo,
        "one": one,
        "host": picture.host(measured) if measured else [],
        "device": picture.device(measured) if measured else [],
        "step_time": words.duration(measured.loop.median) if measured else "",
        "stages": picture.row(measured.loader.stages, are_shares=True) if measured else [],
        "loader": tables.of_loader(measured.loader) if measured else None,
        "functions": measured.loader.functions if measured else [],
        "machine": tables.of_machine(measured.machine) if measured else None,
        "tables": tables.of_measurements(measured) if measured else [],
        "notes": measured.notes if measured else [],
    }
