"""Writes docs/errors.md from the classes of stoker.errors and from errors that are raised here: `make reference`."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import textwrap
from pathlib import Path

from stoker import errors

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"
INTRO = """\
# Errors

This page is generated from the source by `make reference`. Do not edit it by hand.

Every error that Stoker raises on purpose is a `stoker.StokerError`, and also the built-in exception that fits: a plain
`except ValueError` works. A message is one line: what is wrong and where, what was found, what was expected, and what to do.
On a terminal, commands add the name of the error in brackets.

```python
import stoker

try:
    stoker.open("no/such/folder")
except stoker.errors.StoreNotFoundError as error:
    print(error)
```
"""

KNOWN = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.StokerError)}
"""Every error of Stoker by its name."""

EXAMPLES = {
    "OptionError": """
        stoker.Windows(0)
    """,
    "SourceNotFoundError": """
        stoker.pack("prices/*.csv", "prices.stoker")
    """,
    "SourceEmptyError": """
        Path("empty.csv").write_text("ts,close\\n")
        stoker.pack("empty.csv", "empty.stoker")
    """,
    "SourceInvalidError": """
        Path("prices.parquet").write_text("not Parquet")
        stoker.pack("prices.parquet", "prices.stoker")
    """,
    "SchemaError": """
        Path("a.csv").write_text("ts,close\\n1,2.5\\n")
        Path("b.csv").write_text("ts,price\\n1,2.5\\n")
        stoker.pack(["a.csv", "b.csv"], "prices.stoker")
    """,
    "BadValueError": """
        Path("prices.csv").write_text("ts,close\\n1,300\\n")
        stoker.pack("prices.csv", "prices.stoker", dtype={"close": "int8"})
    """,
    "TimeOrderError": """
        Path("prices.csv").write_text("ts,close\\n2,1.0\\n1,2.0\\n")
        stoker.pack("prices.csv", "prices.stoker", time="ts")
    """,
    "StoreNotFoundError": """
        stoker.open("prices.stoker")
    """,
    "StoreExistsError": """
        stoker.Store.from_arrays(x=[[1.0]]).save("x.stoker")
        stoker.Store.from_arrays(x=[[2.0]]).save("x.stoker")
    """,
    "ManifestError": """
        stoker.Store.from_arrays(x=[[1.0]]).save("x.stoker")
        Path("x.stoker/manifest.json").write_text("{}")
        stoker.open("x.stoker")
    """,
    "StoreDamagedError": """
        stoker.Store.from_arrays(x=[[1.0]]).save("x.stoker")
        next(Path("x.stoker").glob("*.npy")).unlink()
        stoker.open("x.stoker")
    """,
    "FeedError": """
        feed = stoker.Feed(stoker.Store.from_arrays(x=[[1.0, 2.0]]), stoker.Windows(1), batch_size=1)
        other = stoker.Feed(stoker.Store.from_arrays(x=[[1.0, 2.0, 3.0]]), stoker.Windows(1), batch_size=1)
        feed.load_state_dict(other.state_dict())
    """,
    "BatchError": """
        data = [torch.tensor([float(number)]) for number in range(8)]
        loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=[0, 1, 2, 2, 4, 5, 6, 7])
        stoker.audit(loader).raise_if_bad()
    """,
    "LeakError": """
        store = stoker.Store.from_arrays(x=[[1.0, 2.0, 3.0, 4.0]])
        stoker.split.given(store, stoker.Windows(2), {"train": [0], "valid": [1]})
    """,
    "ConfigError": """
        Path("config.yaml").write_text("data: {store: x.stoker, batchsize: 4}\\nmodel: linear\\n")
        stoker.experiment.load("config.yaml")
    """,
    "TrainError": """
        model = torch.nn.Linear(1, 1)
        trainer = stoker.Trainer(model, lambda model, batch: 1.0, torch.optim.SGD(model.parameters(), lr=0.1), progress=False)
        trainer.fit([torch.ones(1, 1)], epochs=1)
    """,
    "NonFiniteError": """
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = stoker.Trainer(model, lambda model, batch: model(batch).mean(), optimizer, progress=False)
        trainer.fit([torch.full((1, 1), float("nan"))], epochs=1)
    """,
    "CheckpointError": """
        stoker.train.load_trained(torch.nn.Linear(1, 1), "runs/first")
    """,
    "CheckpointInvalidError": """
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"folder": "runs/first", "progress": False, "logging": stoker.train.Logging(watch=False)}
        stoker.Trainer(model, lambda model, batch: model(batch).mean(), optimizer, **options).fit([torch.ones(1, 1)], epochs=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        stoker.Trainer(model, lambda model, batch: model(batch).mean(), optimizer, **options).fit([torch.ones(1, 1)], epochs=2, resume=True)
    """,
    "SearchError": """
        stoker.tune.search(lambda params: 1.0, {"lr": ("log", 1e-4, 1e-1)}, budget=40, progress=False)
    """,
    "ExtensionError": """
        import stoker.extend
        stoker.extend.load("formats", "waves")
    """,
}
"""For an error, code that raises it. What is raised by other processes, networks and full disks is not among them."""


def explanation(name: str) -> str:
    """Return what an error means and what to do, from its class."""
    return inspect.cleandoc(KNOWN[name].__doc__ or "").split("\n\nExample:")[0]


def message(name: str) -> str:
    """What the example of an error says."""
    import torch

    import stoker

    names = {"stoker": stoker, "torch": torch, "Path": Path}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            exec(textwrap.dedent(EXAMPLES[name]), names)
        except KNOWN[name] as error:
            if type(error) is not KNOWN[name]:
                raise AssertionError(f"the example of {name} raised {type(error).__name__}: {error}") from error
            return (
                (error.strerror if isinstance(error, OSError) and error.strerror else str(error))
                .replace(folder + "/", "")
                .replace(folder, "/home/me")
            )
    raise AssertionError(f"the example of {name} raised nothing")


def page() -> str:
    """The text of the page."""
    rows = "".join(f"| [`{name}`](#{name.lower()}) | {explanation(name).splitlines()[0]} |\n" for name in KNOWN)
    parts = [INTRO, f"| error | |\n| --- | --- |\n{rows}"]
    for name, error in KNOWN.items():
        meaning, _, advice = explanation(name).partition("\n\nTo do: ")
        bases = ", ".join(
            f"`{base.__name__}`"
            for base in inspect.getmro(error)[1:]
            if base.__name__ not in ("object", "BaseException", "Exception")
        )
        parts.append(f"## {name}\n\n{meaning}" + (f" Also a {bases}." if bases else "") + "\n")
        if advice:
            parts.append(f"**To do.** {' '.join(advice.split())}\n")
        if name in EXAMPLES:
            parts.append(f"```text\n{textwrap.fill(message(name), 140, break_long_words=False)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
