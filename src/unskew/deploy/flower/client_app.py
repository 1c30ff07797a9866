"""What Flower starts for every message at a site: it hands the bytes to the site's own process and back.

Flower starts it in the site's folder, where the socket is.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unskew.deploy.channel import ask
from unskew.deploy.flower.records import from_records, introduce, to_records

app = ClientApp()
SOCKET = Path("socket")


@app.query()
def tell_site(message: Message, context: Context) -> Message:
    """Which site this is."""
    return Message(introduce(str(context.node_config["site"])), reply_to=message)


@app.train()
def forward(message: Message, context: Context) -> Message:
    """The answer of the site's process."""
    return Message(to_records(ask(SOCKET, from_records(message.content))), reply_to=message)
