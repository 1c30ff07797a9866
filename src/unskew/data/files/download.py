"""Fetching one file over HTTP: resumes a cut transfer and verifies the checksum before the file gets its name."""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from unskew.base.errors import InputError, is_from_signal, one_line

log = logging.getLogger(__name__)

Progress = Callable[[str, int, "int | None"], None]
"""Called with the file's name, the bytes there are, and the bytes there will be (None: not known)."""

CONNECT_SECONDS = 10.0
ATTEMPTS = 3
BLOCK = 1 << 20


class TransferError(Exception):
    """The server could not be reached or the transfer stopped; what arrived is kept for the next attempt."""


def fetch(url: str, target: Path, checksum: str | None = None, progress: Progress | None = None) -> None:
    """Downloads to `<target>.part`, resuming what is there, and renames once the checksum (`md5:…`) is right."""
    if not url.startswith(("http://", "https://")):
        raise TransferError(f"'{url}' is not an http(s) address")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _transfer(url, part, target.name, progress)
        _verify(part, target, url, checksum)
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        if is_from_signal(error):
            raise
        raise TransferError(_reason(error)) from error


def _transfer(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Repeats a transfer that was cut, as long as every attempt brings more bytes."""
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            _receive(url, part, name, progress)
            return
        except (TransferError, OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS or _size(part) <= before or is_from_signal(error):
                raise
            log.warning("%s: the transfer was cut at %d bytes; resuming", name, _size(part))


def _receive(url: str, part: Path, name: str, progress: Progress | None) -> None:
    have = _size(part)
    try:
        response = _request(url, have)
    except urllib.error.HTTPError as error:
        error.close()
        if not have or error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # everything had arrived before the last run ended
        part.unlink()
        have, response = 0, _request(url, 0)
    with response:
        if have and not _continues(response, have):
            log.info("%s: the server cannot resume; starting again", name)
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as out:
            while block := response.read1(BLOCK):
                out.write(block)
                have += len(block)
                if progress:
                    progress(name, have, total)
    if total is not None and have < total:
        raise TransferError(f"the connection was cut at {have} of {total} bytes; run again to resume")


def _request(url: str, have: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "unskew"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    return urllib.request.urlopen(request, timeout=CONNECT_SECONDS)  # type: ignore[no-any-return]


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    return response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")


def _verify(part: Path, target: Path, url: str, checksum: str | None) -> None:
    if checksum is None:
        log.warning("%s: no checksum is published for it, so the download from %s is not verified", target.name, url)
        return
    kind, _, expected = checksum.partition(":")
    got = digest(part, kind)
    if got != expected:
        part.unlink()
        raise InputError(
            f"{target.name}: the download from {url} has {kind} {got}, expected {expected}; "
            f"it was deleted: try again, or put the right file at {target}"
        )


def digest(path: Path, kind: str) -> str:
    """The checksum of a file, as hexadecimal text."""
    running = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            running.update(block)
    return running.hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    cause = getattr(error, "reason", None)
    return one_line(cause if isinstance(cause, OSError) else error)
