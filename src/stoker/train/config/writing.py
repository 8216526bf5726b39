"""Writing: a configuration with all its values, as YAML that reads back as the same."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.train.config.document import scalar


def to_tree(config: msgspec.Struct) -> dict[str, Any]:
    """Plain values of all fields, as JSON has them."""
    tree: dict[str, Any] = msgspec.to_builtins(config, builtin_types=())
    return tree


def to_yaml(config: msgspec.Struct) -> bytes:
    """All fields as YAML."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Quotes every text that would be read as something else."""

    def text(dumper: Any, value: str) -> Any:
        style = None if value.isprintable() and scalar(value) == value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    Dumper.ignore_aliases = lambda *_: True
    dumped: str = yaml.dump(to_tree(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return dumped.encode()
