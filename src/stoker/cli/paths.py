"""Paths on the command line: every option and argument that names a file or a folder has the type `PATH`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stoker._disk import check_path
from stoker.errors import OptionError

if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    _ParamType = click.ParamType  # not generic in every click that this package accepts


class _Path(_ParamType):
    """The string itself if it is a valid local path; a URL, an empty string or a NUL character is an error."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_path(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)
        return str(value)


PATH = _Path()
