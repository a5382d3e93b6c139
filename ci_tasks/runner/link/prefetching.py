"""What a client may ask of a host about a model hub: how repositories stand there, and to bring what is missing.

Both may be asked twice: a fetch goes on where the one before it stopped.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Dict

from ..hub import fetch as hub
from ..hub.refused import HubRefused
from ..hub.transfer import Stopped
from . import frames


def look(session: Any, request: Dict[str, Any]) -> Any:
    """How each of `repositories` stands, or the code and message of why nobody can say; which `paths` are there."""
    found = []
    for given in request["repositories"]:
        try:
            found.append(hub.look(given))
        except HubRefused as refusal:
            found.append({"code": refusal.code, "message": refusal.message})
        except OSError as error:
            found.append({"code": "denied", "message": str(error)})
    return {"repositories": found, "paths": {path: hub.present(path) for path in request["paths"]}}


def fetch(session: Any, request: Dict[str, Any]) -> Any:
    """Bring one repository; how far it is goes to the client as parts of the answer. A refusal is an answer too."""
    number, stop = int(request["id"]), threading.Event()

    def tell(news: Dict[str, Any]) -> None:
        if session.is_gone():
            stop.set()
            return
        try:
            session.send(frames.part(number, json.dumps(news).encode("ascii") + b"\n"))
        except OSError:
            stop.set()

    try:
        return hub.fetch(request["repository"], request.get("token"), tell, request.get("proxies"), stop)
    except HubRefused as refusal:
        return {"code": refusal.code, "message": refusal.message}
    except Stopped:
        return {"code": "stopped", "message": "the client has gone"}
