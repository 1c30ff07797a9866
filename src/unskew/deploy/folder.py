"""A deployment in a folder: the run, the sites' names, certificates and keys, and the app that Flower is given.

run.toml              what is trained: a run file without clients and split
deploy.toml           the server's address, the sites' names, and what is asked of a round
app/                  what Flower runs: two files that name our apps
server/               the server's certificate and key, Flower's database, the run's folder
sites/NAME/           what a site needs: its key pair and the certificate of the authority; give it to the site
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unskew.base.errors import InputError, let_pass
from unskew.deploy.channel import LIMIT
from unskew.runs.config import read_file

PUBLISHER = "unskew"
_PYPROJECT: dict[str, Any] = {
    "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
    "project": {
        "name": "unskew-app", "version": "1.0.0", "description": "A federation of unskew", "license": "Apache-2.0",
        "dependencies": ["flwr>=1.41"],
    },
    "tool": {"flwr": {"app": {
        "publisher": PUBLISHER,
        "components": {"serverapp": "unskew_app.server:app", "clientapp": "unskew_app.client:app"},
        "config": {"folder": "", "run": "", "proceed": False},
    }}},
}  # fmt: skip
_APP = {
    "__init__.py": '"""What Flower runs for unskew."""\n',
    "server.py": '"""The server\'s app."""\n\nfrom unskew.deploy.flower.server_app import app\n\n__all__ = ["app"]\n',
    "client.py": '"""A site\'s app."""\n\nfrom unskew.deploy.flower.client_app import app\n\n__all__ = ["app"]\n',
}
_RUN = {"method": "fedavg", "rounds": 10, "local": {"epochs": 1, "batch": 32, "lr": 0.05},
        "evaluation": {"local_test": "holdout", "clients_every": 1}}  # fmt: skip


class Deployment(BaseModel):
    """What deploy.toml says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    sites: list[str] = Field(min_length=1)
    """Their names; the order is that of the clients."""
    address: str = "127.0.0.1:18000"
    """Where the server listens, and sites find it."""
    secure: bool = True
    """TLS, and keys by which sites are known."""
    test: str = ""
    """The server's test samples, as a data set (`npz:test.npz`)."""
    min_replies: int = Field(default=1, ge=1)
    """Answers that can be used without which a round does not count."""
    round_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that sites have for an answer."""
    join_timeout: float = Field(default=120.0, ge=0)
    """Seconds that are waited for sites which are not connected."""
    limit: int = Field(default=LIMIT, ge=1 << 16)
    """Bytes of a message."""


class DeployFolder:
    """The files of a deployment."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.app, self.server, self.sites = self.path / "app", self.path / "server", self.path / "sites"
        self.run_file, self.about_file = self.path / "run.toml", self.path / "deploy.toml"
        self.run_folder = self.server / "run"
        self.nodes_file = self.server / "nodes.json"

    def read(self) -> Deployment:
        """What deploy.toml says."""
        if not self.about_file.exists():
            raise InputError(f"{self.path} is no deployment; make one with 'unskew deploy init {self.path}'")
        table = read_file(self.about_file)
        try:
            return Deployment.model_validate(table)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{self.about_file}: {where}: {first['msg']}, got {first.get('input')!r}") from None

    def site(self, name: str) -> Path:
        """What a site needs."""
        return self.sites / name

    def create(self, about: Deployment, run: dict[str, Any] | None = None) -> None:
        """Writes everything but keys; refuses a folder that holds something else."""
        try:
            if self.path.exists() and any(self.path.iterdir()):
                raise InputError(f"{self.path} is not empty; choose a new folder")
            for folder in (self.app / "unskew_app", self.server, *map(self.site, about.sites)):
                folder.mkdir(parents=True)
                folder.chmod(0o700)
            for name, text in _APP.items():
                (self.app / "unskew_app" / name).write_text(text, encoding="utf-8")
            (self.app / "pyproject.toml").write_text(tomli_w.dumps(_PYPROJECT), encoding="utf-8")
            self.run_file.write_text(tomli_w.dumps(run or _RUN), encoding="utf-8")
            self.about_file.write_text(tomli_w.dumps(about.model_dump()), encoding="utf-8")
        except OSError as error:
            let_pass(error)
            raise InputError(f"cannot write {self.path}: {error.strerror}; choose another folder") from None
