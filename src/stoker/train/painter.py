"""The painter: a picture that is told as SVG, as PNG. resvg draws it, with a font that this machine has; imported on use."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from stoker.errors import OptionError

ZOOM = 2
FONTS = {
    "DejaVuSans.ttf": ("DejaVu Sans", "DejaVuSans-Bold.ttf"),
    "LiberationSans-Regular.ttf": ("Liberation Sans", "LiberationSans-Bold.ttf"),
    "NotoSans-Regular.ttf": ("Noto Sans", "NotoSans-Bold.ttf"),
    "Arial.ttf": ("Arial", "Arial Bold.ttf"),
    "arial.ttf": ("Arial", "arialbd.ttf"),
}
"""Files of fonts that have all letters that pictures need, each with its family and where its bold letters are."""
FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.local/share/fonts",
    "~/.fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
    "C:/Windows/Fonts",
)


def as_png(svg: str) -> bytes:
    """The picture, twice as large."""
    from resvg_py import svg_to_bytes

    font = find_font()
    family, bold = FONTS[font.name]
    files = [str(path) for path in (font, font.with_name(bold)) if path.exists()]
    return bytes(
        svg_to_bytes(
            svg_string=svg, zoom=ZOOM, font_files=files, skip_system_fonts=True, font_family=family, sans_serif_family=family
        )
    )


def find_font() -> Path:
    """The first font of the list that is here; refused where none is: a picture without words says little."""
    found: dict[str, Path] = {}
    for folder in _folders():
        for at, _, names in os.walk(folder):
            for name in FONTS.keys() & set(names):
                found.setdefault(name, Path(at) / name)
    for name in FONTS:
        if name in found:
            return found[name]
    wanted = ", ".join(dict.fromkeys(family for family, _ in FONTS.values()))
    raise OptionError(
        f"a picture as .png needs a font, and none of {wanted} is here. Install one, or give a path that ends in .svg."
    )


def _folders() -> Iterator[Path]:
    for folder in FOLDERS:
        yield Path(folder).expanduser()
    spec = importlib.util.find_spec("matplotlib")  # which brings fonts along
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
