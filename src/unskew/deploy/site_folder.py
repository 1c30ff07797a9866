"""A site's folder: all that its machine needs. It holds the key by which the site is known; give it to nobody else.

site.toml             the site's name, the server's address, and, once it was said, where the site's samples are
ca.crt, key, key.pub  the certificate of the deployment's authority, the site's key pair
state/                what the site remembers of each run
flower/, node.log     Flower's own files at this site, and what it says
socket                where Flower's processes reach the site's own
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unskew.base import storage
from unskew.base.errors import InputError, let_pass
from unskew.runs.config import read_file

M = TypeVar("M", bound=BaseModel)
SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]


class AboutSite(BaseModel):
    """What site.toml says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: SiteName
    server: str
    """The server's address."""
    secure: bool = True
    data: str = ""
    """Where the site's samples are, as it was said last."""


class SiteFolder:
    """The files of a site."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.about_file = self.path / "site.toml"
        self.key, self.ca = self.path / "key", self.path / "ca.crt"
        self.state, self.socket = self.path / "state", self.path / "socket"
        self.home, self.log, self.lock = self.path / "flower", self.path / "node.log", self.path / "lock"

    def read(self) -> AboutSite:
        """What site.toml says; refuses a folder that lacks something."""
        if not self.about_file.is_file():
            raise InputError(f"{self.path} is no site's folder: it has no site.toml; give a folder of 'sites/'")
        about = read_model(AboutSite, self.about_file)
        for file in (self.key, self.ca) if about.secure else ():
            if not file.is_file():
                raise InputError(f"{self.path} lacks {file.name}; copy the site's whole folder from the server")
        return about

    def write(self, about: AboutSite) -> None:
        """Writes site.toml."""
        storage.write_atomic(self.about_file, tomli_w.dumps(about.model_dump()).encode())


def read_model(kind: type[M], path: Path) -> M:
    """A validated TOML file; what is wrong is one line that names it."""
    try:
        return kind.model_validate(read_file(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {where}: {first['msg']}, got {first.get('input')!r}") from None
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot read {path}: {error.strerror}") from None
