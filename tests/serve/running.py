"""A service that listens on a free port of the loopback, in a thread."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from kalstream.runs.options import Options
from kalstream.serve.app import make_app
from kalstream.serve.service import Service


@contextmanager
def running(folder: Path, options: Options | None = None, **of_app: Any) -> Iterator[str]:
    """The address of a service with the model "default"."""
    service = Service(folder)
    service.start()
    service.begin("default", options or Options(features="raw"))
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(service, **of_app)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        service.stop()
