"""Records real runs on the examples as images: `python tools/record_diagnosis.py [diagnose] [receipt]`.

They are docs/images/diagnose.svg (`stoker diagnose slow.py`) and receipt.svg (`stoker compare slow.py fast.py`). Run it on an idle machine:
beside other programs there is no verdict, and the script keeps the old image and exits with 1.
"""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH = 116
COMMANDS = {
    "diagnose": ["diagnose", "--quiet", "slow.py"],
    "receipt": ["compare", "--quiet", "--steps", "60", "slow.py", "fast.py"],
}
THEME = TerminalTheme(
    (22, 27, 34),
    (201, 209, 217),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)
# Rich's own template loads a font from a web site. This one uses the reader's monospaced font.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>Output of stoker TITLE</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def run_in_terminal(words: list[str], folder: Path) -> tuple[int, str]:
    """The exit code and the output, with colours, of a command in a terminal of `WIDTH` columns."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(words, cwd=folder, stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
    os.close(terminal)
    parts = []
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # the terminal is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(controller)
    return child.wait(), b"".join(parts).decode().replace("\r\n", "\n")


def main() -> None:
    """Run the examples and write the images that are named, or all of them."""
    sys.path.insert(0, str(ROOT / "examples"))
    from demo import make_data

    for image in sys.argv[1:] or COMMANDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for script in ("slow.py", "fast.py"):
                shutil.copy(ROOT / "examples" / script, folder)
            make_data(folder)
            code, output = run_in_terminal([sys.executable, "-m", "stoker", *COMMANDS[image]], folder)
        print(output)
        if code != 0:
            sys.exit(f"stoker {COMMANDS[image][0]} ended with exit code {code}: {image}.svg stays as it is.")
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        console.print(Text("$ stoker " + " ".join(COMMANDS[image])))
        console.print(Text.from_ansi(output.strip("\n")))
        svg = console.export_svg(title="", theme=THEME, code_format=FORMAT.replace("TITLE", COMMANDS[image][0]), unique_id="stoker")
        (IMAGES / f"{image}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
