"""Reading many small images from a folder, a .zip or a .tar.gz, without unpacking archives to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from unskew.base.errors import InputError, is_from_signal, one_line
from unskew.data.dataset import Samples
from unskew.data.files.arrays import Array, Arrays
from unskew.data.files.decoded_cache import load_or_decode

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

Tags = Callable[[str], "tuple[int, ...] | None"]
"""The numbers (such as part and class) of the image at a relative path; None leaves the image out."""

TRAIN, TEST, VALIDATION = 0, 1, 2
"""The first tag of an image where a data set comes in parts."""

_UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError)


def is_image(name: str) -> bool:
    """Whether a relative path is one of an image; hidden files and folders are left out."""
    return name.lower().endswith(SUFFIXES) and not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def decode_images(origin: Path, tags: Tags, variant: str, *, size: int, grey: bool = False) -> tuple[Array, Array]:
    """Images [N, C, size, size] uint8 and their tags [N, K], sorted by path; `variant` names the tags for the cache."""
    arrays = load_or_decode(origin, f"{variant} {size} {grey}", lambda: _decode(origin, tags, size, grey))
    return arrays["x"], arrays["tags"]


def select_part(x: Array, tags: Array, part: int, origin: Path) -> Samples:
    """The samples of one part, where tags are (part, label)."""
    chosen = tags[:, 0] == part
    if not chosen.any():
        name = ("training", "test", "validation")[part]
        raise InputError(f"{origin}: holds no {name} images; get the complete files")
    return Samples(torch.from_numpy(x[chosen]), torch.from_numpy(tags[chosen, 1]))


def _decode(origin: Path, tags: Tags, size: int, grey: bool) -> Arrays:
    pixels, found, names = bytearray(), [], []
    for name, content in _read_wanted(origin, lambda name: is_image(name) and tags(name) is not None):
        pixels += _pixels(content, f"{origin}/{name}", size, grey)
        found.append(tags(name))
        names.append(name)
    if not names:
        raise InputError(f"{origin}: holds none of the images it should; check its layout")
    x = np.frombuffer(pixels, dtype=np.uint8).reshape(len(names), 1 if grey else 3, size, size)
    order = np.asarray(sorted(range(len(names)), key=names.__getitem__))
    numbers = np.asarray(found, dtype=np.int64)
    if (order[1:] > order[:-1]).all():
        return {"x": x, "tags": numbers}
    return {"x": x[order], "tags": numbers[order]}


def _eight_bit(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel: Pillow would clip 16-bit greys to white instead of scaling them."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.float64)
        return Image.fromarray(np.clip(np.round(values / 257), 0, 255).astype(np.uint8))
    return image


def _pixels(content: bytes, where: str, size: int, grey: bool) -> bytes:
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.mode == "F":
                raise InputError(
                    f"{where}: holds floating-point pixels, whose range is unknown; save images with 8 or 16 bits, or "
                    "all of them as floats in an .npz"
                )
            pictures = getattr(image, "n_frames", 1)
            if pictures > 1 and image.format != "MPO":  # a camera's JPEG with its own preview
                raise InputError(f"{where}: holds {pictures} pictures (animation, stack); save one picture a file")
            shown = _eight_bit(image).convert("L" if grey else "RGB")
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error, Image.DecompressionBombError) as error:
        if is_from_signal(error):
            raise
        why = "of no known format" if isinstance(error, UnidentifiedImageError) else one_line(error)[:80]
        raise InputError(f"{where}: expected an image, got a damaged file ({why}); replace or remove it") from None
    if shown.size != (size, size):
        shown = shown.resize((size, size), Image.Resampling.BILINEAR)
    array: Array = np.asarray(shown).reshape(size, size, -1)
    return np.moveaxis(array, 2, 0).tobytes()


def read_text(origin: Path, ending: str) -> str:
    """The text of the one file whose path ends so."""
    for _, content in _read_wanted(origin, lambda name: f"/{name}".endswith(f"/{ending}")):
        return content.decode("utf-8", errors="replace")
    raise InputError(f"{origin}: expected it to hold {ending}; it does not: get the complete files")


def read_members(origin: Path, endings: tuple[str, ...]) -> dict[str, bytes]:
    """The contents of the files with these names, wherever they are in the folder or archive."""
    found = {
        name.rpartition("/")[2]: content
        for name, content in _read_wanted(origin, lambda name: name.rpartition("/")[2] in endings)
    }
    for name in endings:
        if name not in found:
            raise InputError(f"{origin}: expected it to hold {name}; it does not: get the complete files")
    return found


def _read_wanted(origin: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Paths relative to the origin, with forward slashes, and contents."""
    try:
        if origin.is_dir():
            yield from _read_folder(origin, wanted)
        elif zipfile.is_zipfile(origin):
            yield from _read_zip(origin, wanted)
        else:
            yield from _read_tar(origin, wanted)
    except _UNREADABLE as error:
        raise InputError(
            f"{origin}: expected a folder, .zip or .tar.gz, got a damaged file ({one_line(error)}); get it again"
        ) from None


def _read_folder(origin: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    names = (path.relative_to(origin).as_posix() for path in origin.rglob("*") if path.is_file())
    for name in sorted(name for name in names if wanted(name)):
        yield name, (origin / name).read_bytes()


def _read_zip(origin: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(origin) as archive:
        for name in sorted(name for name in archive.namelist() if not name.endswith("/") and wanted(name)):
            yield name, archive.read(name)


def _read_tar(origin: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(origin, "r|*") as archive:  # one pass: seeking in a compressed tar would read it again
        for member in archive:
            name = member.name.removeprefix("./")
            content = archive.extractfile(member) if member.isfile() and wanted(name) else None
            if content:
                yield name, content.read()
