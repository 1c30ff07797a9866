"""The command line called in this process, as `unskew` calls it, and folders of good and bad files for it."""

from __future__ import annotations

import shlex
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import unskew
from cli.calling import FILES, Call, Said, write_arrays, write_images
from small_runs import SMALL
from unskew.base.registry import Registry
from unskew.cli import main


@pytest.fixture(scope="session")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that commands must refuse without changing one of them."""
    folder = tmp_path_factory.mktemp("bad")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "no_text.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "empty").mkdir()
    write_arrays(folder)
    write_images(folder / "images")
    (folder / "idx" / "mnist").mkdir(parents=True)
    for part in ("train", "t10k"):
        images = struct.pack(">4B3I", 0, 0, 8, 3, 10, 28, 28) + bytes(100)
        (folder / f"idx/mnist/{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"idx/mnist/{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 10) + bytes(10))
    unskew.run(data=f"npz:{folder / 'hospitals.npz'}", split="natural", rounds=1, model="mlp", out=folder / "other_run")
    shutil.copy(folder / "other_run" / "split.json", folder / "other_data.json")
    return folder


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Call:
    """Calls the command line's entry with one line of arguments; no download can succeed."""
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("UNSKEW_MIRROR", "http://127.0.0.1:9")
    monkeypatch.delenv("UNSKEW_DATA", raising=False)

    def answer(line: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(shlex.split(line))
        out, err = capsys.readouterr()
        return Said(int(end.value.code or 0), out, err)

    return answer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, to be copied."""
    place = tmp_path_factory.mktemp("made")
    unskew.run(**{**SMALL, "out": place / "run"})
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the run, from which commands are called."""
    shutil.copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system in memory with these options; skips where that is not permitted."""
    place = tmp_path / "disk"

    def mount(options: str) -> Path:
        place.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"cannot mount a small file system: {error}")
        if done.returncode:
            pytest.skip(f"mounting a small file system is not permitted here: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module", autouse=True)
def shipped_names_only() -> Iterator[None]:
    """Knows the package's own names at first: those of other tests are in lists and lines; forgets what plugins add."""
    before = {id(registry): dict(registry._classes) for registry in Registry.every}
    for registry in Registry.every:
        shipped = {name: cls for name, cls in registry._classes.items() if cls.__module__.startswith("unskew.")}
        registry._classes = shipped
    yield
    for registry in Registry.every:
        registry._classes = before.get(id(registry), registry._classes)
