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
    """The text as it is, if it can be a path on this machine; a URL, an empty text or a NUL character is refused."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            check_path(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)
        return str(value)


PATH = _Path()
