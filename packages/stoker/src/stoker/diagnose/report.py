"""The HTML report of a finding (`stoker diagnose --report`): one self-contained file without scripts.

`write_report` fills the template report.html.jinja with values of the finding; sentences come from wording.py. Names of programs,
paths and errors are shown as text: Jinja escapes every value, control characters are written as escapes, and a content security policy
forbids scripts and requests.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stoker
from stoker._disk import check_writable, write_file
from stoker._text import printable
from stoker.diagnose import wording as show
from stoker.diagnose.advice import by_trial, refuted
from stoker.diagnose.finding import Finding, certainty, likely_line, place_beside, removals_of
from stoker.diagnose.measurements import Blame, Stretch
from stoker.errors import OptionError

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "report.html.jinja"
SUFFIX = ".html"
MOST_CAUSES = 4


def check_path(path: Path) -> Path:
    """Check the path of a report before anything is measured."""
    if path.suffix != SUFFIX:
        raise OptionError(f"{path} ends in {path.suffix!r}; expected a report that ends in {SUFFIX!r}.")
    if not path.parent.is_dir():
        raise OptionError(f"{path.parent} is not a folder, so the report {path.name} cannot be written there. Create it first.")
    check_writable(path)
    if path.is_dir():
        raise OptionError(f"{path} is a folder; expected the name of a report.")
    return path


def write_report(finding: Finding, path: str | Path, *, title: str) -> Path:
    """Write a finding as one HTML file.

    Args:
        finding: The finding.
        path: A path that ends in `.html`, in a folder that exists.
        title: What was diagnosed, such as the command.

    Returns:
        The path.

    Raises:
        OptionError: The path is not valid.
        DiskError: The folder of the path cannot be written to.
    """
    path = check_path(Path(path))
    write_file(path, render(finding, title=title).encode(), durable=False)
    return path


def render(finding: Finding, *, title: str, environment: Environment | None = None) -> str:
    """The page; the same finding gives the same bytes."""
    template = (environment or make_environment()).get_template(TEMPLATE)
    return template.render(title=title, **_values(finding))


@cache
def make_environment() -> Environment:
    """The environment of the template: every value is escaped, and a missing one is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        if isinstance(value, Markup):  # the output of a macro, whose values are escaped already
            return value
        return f"{value:.2f}" if isinstance(value, float) else printable(str(value))

    folder = resources.files("stoker.diagnose")
    loader = FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=finalize, trim_blocks=True, lstrip_blocks=True
    )


def _values(finding: Finding) -> dict[str, Any]:
    """The values of the template."""
    measured = finding.measurements
    windows, lines = dict[str, Stretch | None](), dict[str, list[Blame]]()
    if measured is not None:
        windows = {"the unchanged loop": measured.loop, "the loop with cached batches": measured.cached}
        windows |= {"the loader alone": measured.loader_alone, "the device alone": measured.device_alone}
        lines = {"a batch": measured.loader.functions, **measured.blames}
    return {
        "version": stoker.__version__,
        "finding": finding,
        "verdict": show.TITLES[finding.verdict],
        "headline": finding.causes[0].sentence if finding.causes else finding.why,
        "place": place_beside(finding),
        "certainty": certainty(finding),
        "likely": likely_line(finding.likely) if finding.likely is not None else "",
        "why_first": show.why_first(finding.causes),
        "removed": removals_of(finding),
        "others": [(show.TITLES[cause.verdict], cause) for cause in finding.causes[1:MOST_CAUSES]],
        "show": show,
        "steps": [(step, refuted(step)) for step in by_trial(finding.next)],
        "windows": [(name, window) for name, window in windows.items() if window is not None and window.seconds],
        "lines": [(phase, blame) for phase, blames in lines.items() for blame in blames],
        "notes": measured.notes if measured else [],
        "patch": show.patch_lines(finding.patch) if finding.patch else [],
    }
