"""Torch's private names are used in one module only."""

import ast
from pathlib import Path

import pytest

import unskew

ROOT = Path(unskew.__file__).parent
ALLOWED = ROOT / "base" / "torch_private.py"
OF_MODULES = {
    "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_forward_hooks", "_forward_pre_hooks",
    "_backward_hooks", "_reversed_padding_repeated_twice",
}  # fmt: skip
"""Private attributes of modules, wherever they are read."""


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def dotted(node):
    """`torch.nn.modules` for the expression of that text; an empty list where it is no chain of names."""
    if isinstance(node, ast.Name):
        return [node.id]
    above = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*above, node.attr] if above else []


def private_uses(source):
    """The lines that use a private name of torch, each with the name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names if alias.name.split(".")[0] == "torch"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [[*node.module.split("."), alias.name] for alias in node.names]
        elif isinstance(node, ast.Attribute):
            chain = dotted(node)
            names = [chain] if chain[:1] in (["torch"], ["nn"], ["F"]) else []
            found += [(node.lineno, node.attr)] if node.attr in OF_MODULES else []
        elif isinstance(node, ast.Constant) and node.value in OF_MODULES:  # for getattr
            found.append((node.lineno, node.value))
        found += [(node.lineno, ".".join(parts)) for parts in names if any(map(is_private, parts))]
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._C import _functorch",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "torch._foreach_add_(a, b)",
        "engine = torch.autograd.Variable._execution_engine",
        "isinstance(m, nn.modules.batchnorm._BatchNorm)",
        "module._parameters['weight']",
        "getattr(module, '_buffers')",
    ],
)
def test_a_private_use_is_found(line):
    assert private_uses(line)


@pytest.mark.parametrize("line", ["torch.__version__", "self._params", "from torch import nn", "module.parameters()"])
def test_a_public_use_is_none(line):
    assert not private_uses(line)


def test_private_names_are_used_in_one_module_only():
    found = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        if path != ALLOWED
        for line, name in private_uses(path.read_text(encoding="utf-8"))
    }
    assert not found, "move these into base/torch_private.py"
    assert private_uses(ALLOWED.read_text(encoding="utf-8"))
