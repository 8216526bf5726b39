"""An extension of Griffe, which reads docstrings for the site: a section `Example:` is one of examples, as `Examples:` is.

Without it, Griffe takes `Example:` for a paragraph, and the code in it for prose.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class DocstringExamples(griffe.Extension):
    """Renames the section in every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
