"""The walk-through of docs/deployment.md, its commands one by one as they stand there."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr")

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
BIN = Path(sys.executable).parent


def blocks(kind: str) -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split("## Three hospitals on one laptop")[1].split("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.M | re.S)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_walk_through_works_as_it_is_written(tmp_path):
    (tmp_path / "make_data.py").write_text(blocks("python")[0])
    (tmp_path / "run.toml").write_text(blocks("toml")[0])
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    staying, began = [], time.monotonic()
    try:
        for line in "".join(blocks("sh")).splitlines():
            words = shlex.split(line)
            if words[:2] == ["unskew", "deploy"] and words[2] in ("server", "site"):
                out = tmp_path / f"{len(staying)}.out"
                with out.open("wb") as file:
                    staying.append((subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=file,
                                                     stderr=subprocess.STDOUT), out))  # fmt: skip
                continue
            if words[:3] == ["unskew", "deploy", "run"]:  # "wait until each says connected"
                wait([out for _, out in staying[1:]], "connected")
            done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            print(f"{time.monotonic() - began:6.1f} s  {line}\n{done.stdout}{done.stderr}")
        for process, _ in staying:
            assert process.wait(60) == 143  # ended by stop
    finally:
        for process, _ in staying:
            process.terminate()
    models = [load_file(tmp_path / f"{name}.safetensors") for name in ("north", "south", "west")]
    heads = [name for name in models[0] if name.startswith("model/head")]
    bodies = [name for name in models[0] if name.startswith("model/body")]
    assert heads and all(not models[0][name].equal(models[1][name]) for name in heads)
    assert bodies and all(models[0][name].equal(models[1][name]) for name in bodies)


def wait(files, text, seconds=600):
    deadline = time.monotonic() + seconds
    while not all(text in file.read_text() for file in files):
        assert time.monotonic() < deadline, [file.read_text() for file in files]
        time.sleep(0.5)
