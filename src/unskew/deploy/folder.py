"""A deployment in a folder: the run, the sites' names, certificates and keys, and the app that Flower is given.

run.toml              what is trained: a run file without data, clients and split
deploy.toml           the server's address, the sites' names, and what is asked of a round
runs/                 the folders of runs, as a simulation leaves them
app/                  what Flower runs: two files that name our apps
server/               the server's certificate and key, Flower's files, what was ordered of it
sites/NAME/           what a site needs; give it to the site, and to nobody else
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unskew.base import storage
from unskew.base.errors import InputError, let_pass
from unskew.deploy.channel import LIMIT
from unskew.deploy.site_folder import AboutSite, SiteFolder, SiteName, read_model

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
        "config": {"run": ""},
    }}},
}  # fmt: skip
_APP = {
    "__init__.py": '"""What Flower runs for unskew."""\n',
    "server.py": '"""The server\'s app."""\n\nfrom unskew.deploy.flower.server_app import app\n\n__all__ = ["app"]\n',
    "client.py": '"""A site\'s app."""\n\nfrom unskew.deploy.flower.client_app import app\n\n__all__ = ["app"]\n',
}
DEFAULT_RUN = {"method": "fedavg", "rounds": 10, "local": {"epochs": 1, "batch": 32, "lr": 0.05},
        "evaluation": {"local_test": "holdout"}}  # fmt: skip


class Deployment(BaseModel):
    """What deploy.toml says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    sites: list[SiteName] = Field(min_length=1)
    """Their names; the order is that of the clients."""
    address: str = "127.0.0.1:18000"
    """Where sites find the server."""
    listen: str = ""
    """Where the server listens, if that is not the address: 0.0.0.0:18000, say."""
    secure: bool = True
    """TLS, and keys by which sites are known."""
    test: str = ""
    """The server's test samples, as a data set: `npz:/data/test.npz`."""
    min_replies: int = Field(default=1, ge=1)
    """Answers that can be used without which a round does not count."""
    round_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that sites have for an answer."""
    join_timeout: float = Field(default=120.0, ge=0)
    """Seconds that are waited for sites which are not connected."""
    limit: int = Field(default=LIMIT, ge=1 << 16)
    """Bytes of a message."""


class Order(BaseModel):
    """What the server's app is to do: a run of its own, or one that goes on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    run: str
    """What the run is called between server and sites."""
    out: str
    """The name of its folder below runs/."""
    proceed: bool
    min_replies: int = Field(ge=1)
    round_timeout: float = Field(gt=0)
    flower: str = ""
    """What Flower calls it."""


class DeployFolder:
    """The files of a deployment."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.app, self.server, self.sites = self.path / "app", self.path / "server", self.path / "sites"
        self.run_file, self.about_file = self.path / "run.toml", self.path / "deploy.toml"
        self.runs, self.orders = self.path / "runs", self.server / "orders"
        self.nodes_file, self.home = self.server / "nodes.json", self.server / "flower"
        self.link_log, self.lock = self.server / "link.log", self.server / "lock"

    def read(self) -> Deployment:
        """What deploy.toml says."""
        if not self.about_file.exists():
            raise InputError(f"{self.path} is no deployment; make one with 'unskew deploy init {self.path}'")
        return read_model(Deployment, self.about_file)

    def site(self, name: str) -> SiteFolder:
        """What a site needs."""
        return SiteFolder(self.sites / name)

    def create(self, about: Deployment, run: dict[str, Any] | None = None) -> None:
        """Writes everything but keys; refuses a folder that holds something else."""
        try:
            if self.path.exists() and any(self.path.iterdir()):
                raise InputError(f"{self.path} is not empty; choose a new folder")
            places = [self.server, self.orders, *(self.site(name).path for name in about.sites)]
            for folder in (self.app / "unskew_app", self.runs, *places):
                folder.mkdir(parents=True)
            for folder in (self.sites, *places):
                folder.chmod(0o700)  # private keys, and what sites remember
            for name, text in _APP.items():
                (self.app / "unskew_app" / name).write_text(text, encoding="utf-8")
            (self.app / "pyproject.toml").write_text(tomli_w.dumps(_PYPROJECT), encoding="utf-8")
            self.run_file.write_text(tomli_w.dumps(run or DEFAULT_RUN), encoding="utf-8")
            self.about_file.write_text(tomli_w.dumps(about.model_dump()), encoding="utf-8")
            for name in about.sites:
                self.site(name).write(AboutSite(name=name, server=about.address, secure=about.secure))
        except OSError as error:
            let_pass(error)
            raise InputError(f"cannot write {self.path}: {error.strerror}; choose another folder") from None

    # ---------------------------------------------------------------------------------------- orders

    def find_order(self, out: str) -> Order | None:
        """The newest order for the run in this folder below runs/."""
        found = [order for order in map(self._read, self.orders.glob("*.json")) if order.out == out]
        return found[0] if found else None

    def read_order(self, run: str) -> Order:
        """The order of this name."""
        return self._read(self.orders / f"{run}.json")

    def write_order(self, order: Order) -> None:
        """Keeps an order for the server's app."""
        storage.write_atomic(self.orders / f"{order.run}.json", order.model_dump_json().encode())

    def list_orders(self) -> list[Order]:
        """All orders, the newest last."""
        files = sorted(self.orders.glob("*.json"), key=lambda path: path.stat().st_mtime)
        return [self._read(path) for path in files]

    def order_file(self, order: Order, kind: str) -> Path:
        """A file beside an order: its `lock`, `log`, or why it `failed`."""
        return self.orders / f"{order.run}.{kind}"

    @staticmethod
    def _read(path: Path) -> Order:
        try:
            return Order.model_validate(json.loads(path.read_bytes()))
        except (OSError, ValueError, ValidationError) as error:
            raise InputError(f"cannot read {path}: {type(error).__name__}; remove it to begin that run anew") from None


def make_run_name() -> str:
    """A new name for a run between server and sites."""
    return secrets.token_hex(8)
