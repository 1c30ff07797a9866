"""What Flower starts for every message at a site: it hands the bytes to the site's own process and back."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from unskew.deploy.daemon import ask
from unskew.deploy.flower.records import from_records, introduce, to_records

app = ClientApp()


@app.query()
def tell_site(message: Message, context: Context) -> Message:
    """Which site this is."""
    return Message(introduce(str(context.node_config["site"])), reply_to=message)


@app.train()
def forward(message: Message, context: Context) -> Message:
    """The answer of the site's process."""
    answer = ask(Path(str(context.node_config["socket"])), from_records(message.content))
    return Message(to_records(answer), reply_to=message)
