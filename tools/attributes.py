"""Which attributes a package sets on objects of another one, as far as their classes can be seen in the source.

The class of an object is known where it is annotated, made (`Hooks()`), or an attribute of an object whose class is known. Class names are
unique in the tree (another rule of tools/structure.py), so a name is enough.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

Classes = dict[str, str]
"""For names of variables, or attributes of a class: the names of their classes."""


class Tree:
    """The classes of all modules: where they are, their bases, and the classes of their attributes."""

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self.nodes: dict[str, ast.ClassDef] = {}
        self.package: dict[str, str] = {}
        for module, tree in modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.nodes[node.name], self.package[node.name] = node, package_of(module)
        self.attributes: dict[str, Classes] = {}
        for name, node in self.nodes.items():
            self.attributes[name] = self._attributes_of(node)

    def _attributes_of(self, node: ast.ClassDef) -> Classes:
        annotated = {
            child.target.id: child.annotation
            for child in node.body
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
        }
        known = {name: found for name, annotation in annotated.items() if (found := self.named(annotation))}
        for method in node.body:
            if isinstance(method, ast.FunctionDef):
                variables = self.variables(method, {})
                for child in statements(method):
                    for target, value, annotation in assignments(child):
                        if isinstance(target, ast.Attribute) and is_self(target.value):
                            found = self.named(annotation) or self.of(value, variables)
                            known |= {target.attr: found} if found else {}
        return known

    def named(self, annotation: ast.expr | None) -> str | None:
        """Return the class that an annotation names, if it names exactly one of the tree."""
        if annotation is None:
            return None
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        names = {child.id for child in ast.walk(annotation) if isinstance(child, ast.Name)} & self.nodes.keys()
        plain = isinstance(annotation, ast.Name | ast.BinOp | ast.Attribute)  # not a list of such objects
        return names.pop() if len(names) == 1 and plain else None

    def variables(self, function: ast.FunctionDef, outer: Classes) -> Classes:
        """Return the classes of the arguments and variables of a function."""
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        known = {**outer, **{argument.arg: found for argument in arguments if (found := self.named(argument.annotation))}}
        for child in statements(function):
            for target, value, annotation in assignments(child):
                if isinstance(target, ast.Name) and (found := self.named(annotation) or self.of(value, known)):
                    known[target.id] = found
        return known

    def of(self, value: ast.expr | None, variables: Classes) -> str | None:
        """Return the class of an expression, if it is known."""
        if isinstance(value, ast.Name):
            return variables.get(value.id)
        if isinstance(value, ast.Attribute):
            return self.attribute(self.of(value.value, variables), value.attr)
        if isinstance(value, ast.Call):
            name = ast.unparse(value.func).rpartition(".")[2]
            return name if name in self.nodes else None
        return None

    def attribute(self, owner: str | None, name: str) -> str | None:
        """Return the class of an attribute of a class, or of its bases."""
        if owner is None or owner not in self.nodes:
            return None
        bases = (ast.unparse(base).rpartition(".")[2] for base in self.nodes[owner].bases)
        return self.attributes.get(owner, {}).get(name) or next(
            (found for base in bases if (found := self.attribute(base, name))), None
        )


def blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements that are directly in a statement or a module."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(node, field, [])
        yield from inner if isinstance(inner, list) else ()  # the body of a lambda is an expression


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements in a statement."""
    for child in blocks(node):
        yield child
        yield from statements(child)


def is_self(node: ast.expr) -> bool:
    """Return whether an expression is `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, ast.expr | None]]:
    """Yield targets, values and annotations of a statement that assigns."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for single in target.elts if isinstance(target, ast.Tuple) else [target]:
                yield single, node.value if single is target else None, None
    elif isinstance(node, ast.AnnAssign):
        yield node.target, node.value, node.annotation
    elif isinstance(node, ast.AugAssign):
        yield node.target, None, None
    elif isinstance(node, ast.With):
        yield from ((item.optional_vars, item.context_expr, None) for item in node.items if item.optional_vars is not None)
    elif (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "setattr"
    ):
        yield ast.Attribute(node.value.args[0], ast.unparse(node.value.args[1]).strip("'")), None, None


def package_of(module: str) -> str:
    """Return the package of a module: "train", or "recipes.tfa"."""
    words = module.split(".")
    return ".".join(words[:2]) if words[0] == "recipes" else words[0]


def set_from_outside(modules: Mapping[str, ast.Module]) -> list[str]:
    """Return the attributes that are set outside of the package of their class, as "gate.counts: Hooks.on_step"."""
    tree = Tree(modules)
    found: set[str] = set()

    def visit(node: ast.AST, module: str, variables: Classes) -> None:
        if isinstance(node, ast.ClassDef):
            variables = {**variables, "self": node.name}
        if isinstance(node, ast.FunctionDef):
            variables = tree.variables(node, variables)
        for target, _, _ in assignments(node):
            if isinstance(target, ast.Attribute) and not is_self(target.value) and target.attr[:2] != "__":
                owner = tree.of(target.value, variables)
                if owner is not None and tree.package[owner] != package_of(module):
                    found.add(f"{module}: {owner}.{target.attr}")
        for child in blocks(node):
            visit(child, module, variables)

    for module, parsed in modules.items():
        visit(parsed, module, {})
    return sorted(found)
