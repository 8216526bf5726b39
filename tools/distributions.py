"""Build the wheels and source archives of both packages, and try the wheels: `python -m tools.distributions FOLDER`.

The environment in which they are tried is empty. Needs only Python with venv and pip. The environment gets the versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("stoker", "stoker-recipes")
SMOKE = """
import importlib.metadata, pathlib, stoker, stoker_recipes
assert importlib.metadata.version("stoker") == importlib.metadata.version("stoker-recipes") == stoker.__version__
pathlib.Path("prices.csv").write_text("symbol,time,close\\na,1,1.5\\na,2,2.5\\na,3,3.5\\nb,1,4.5\\nb,2,5.5\\n")
store = stoker.pack("prices.csv", "prices.stoker", series="symbol")
batch = next(iter(stoker.Feed(store, stoker.Windows(2), batch_size=2)))
assert batch["close"].tolist() == [[1.5, 2.5], [2.5, 3.5]], batch
"""


def missing_files(package: str, wheel: Path) -> list[str]:
    """Return the files of a package's source folder that its wheel does not have."""
    source = ROOT / "packages" / package / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    wanted = {name for name in files if "__pycache__" not in name and ".egg-info/" not in name}
    return sorted(wanted - set(zipfile.ZipFile(wheel).namelist()))


def build(out: Path, python: str) -> list[Path]:
    """Build both packages with an interpreter that has `build`, and return the wheels.

    Raises:
        SystemExit: A wheel lacks a file of its package.
    """
    for package in PACKAGES:
        _run(python, "-m", "build", "--outdir", str(out), str(ROOT / "packages" / package))
    wheels = [next(out.glob(f"{package.replace('-', '_')}-[0-9]*.whl")) for package in PACKAGES]
    for package, wheel in zip(PACKAGES, wheels, strict=True):
        if missing := missing_files(package, wheel):
            raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}: add them to package-data in its pyproject.toml.")
    return wheels


def main(words: Sequence[str] | None = None) -> None:
    """Build, and try what was built."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Where the wheels and archives go.")
    out = parser.parse_args(words).folder.resolve()
    with tempfile.TemporaryDirectory() as folder:
        builder, user = (str(Path(folder) / name / "bin" / "python") for name in ("builder", "user"))
        venv.create(Path(folder) / "builder", with_pip=True)
        _run(builder, "-m", "pip", "install", "--quiet", "build")
        wheels = build(out, builder)
        venv.create(Path(folder) / "user", with_pip=True)
        _run(user, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), *map(str, wheels))
        subprocess.run([user, "-c", SMOKE], cwd=folder, check=True)
        _run(user, "-m", "stoker", "--help")
    print(f"{len(wheels)} wheels in {out} install and work")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
