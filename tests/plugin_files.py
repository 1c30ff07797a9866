"""Plugin files that tests write into the current folder."""

from pathlib import Path

HEAD = (
    "import dataclasses, random, time, torch\nimport numpy as np\n"
    "from unskew import *\nfrom unskew import registries, tree\n"
)


def write(name, text):
    """A plugin file; its name."""
    Path(f"{name}.py").write_text(HEAD + text)
    return f"{name}.py"


def write_part(name, registry, kind, text):
    """A plugin file with one component of this name; the file's name."""
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    head = f"@registries.{registry}.register('{name}')\nclass Mine({kind}):\n    '''Mine.'''\n"
    return write(name, head + body + "\n")
