"""`kalstream serve` and `kalstream token`."""

from __future__ import annotations

import gc
import signal
import socket
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kalstream._optional import require
from kalstream.cli.console import app, err, escaped, out
from kalstream.cli.run import options_of, with_options
from kalstream.errors import InvalidOption
from kalstream.runs.options import NOT_SERVED, Options
from kalstream.serve.logs import Level, begin_logging

_HELP: Final = """
Serve models over HTTP: they learn what they are sent.

What was acknowledged is on disk, and survives a crash. Needs the extra serve: pip install
'kalstream\\[serve]'.

[bold]Examples[/bold]

  kalstream serve                 a model "default", with a page, at
                                  http://localhost:8000

  kalstream serve runs/data-1     continue with the model of a run

  curl localhost:8000/models/default/learn \\
    --json '{"row": {"x": 1}, "label": "yes"}'
"""

_TOKEN_HELP: Final = """
Make a token for a service, and print it once; only its hash is kept.

[bold]Examples[/bold]

  kalstream token shop --rights predict,learn

  kalstream token shop --rights ""            take all rights away
"""

Data = Annotated[Path, typer.Option("--data", help="Folder where the service keeps everything.")]
_PATIENCE: Final = 10  # seconds that requests may take which have begun when it is stopped
_DATA: Final = Path("kalstream-data")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@app.command("serve", help=_HELP)
@with_options(name for name in Options.model_fields if name not in (*NOT_SERVED, "origin"))
def serve(  # noqa: D103
    run: Annotated[
        Path | None, typer.Argument(help="A run, or a file of a model, to continue with.")
    ] = None,
    *,
    data: Data = _DATA,
    name: Annotated[
        str, typer.Option(help="Name of the model.", show_default="default, or that of the run")
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name by which clients ask for the service; repeat the option."),
    ] = None,
    keep_log: Annotated[
        bool, typer.Option("--keep-log", help="Keep all events, not only those after a checkpoint.")
    ] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0.0, help="Seconds between checkpoints.")
    ] = 30.0,
    log: Annotated[
        Level,
        typer.Option(
            help="JSON lines on standard error: events and requests that fail, or all requests."
        ),
    ] = "events",
    **values: Any,
) -> None:
    for module in ("fastapi", "msgspec", "prometheus_client"):
        require(module, "serve")
    uvicorn = require("uvicorn", "serve")

    import scipy.linalg.blas  # noqa: F401  (its BLAS must be loaded to be limited)
    from threadpoolctl import threadpool_limits

    from kalstream.core.jit import when_compiling
    from kalstream.estimators.warming import warm_up
    from kalstream.serve.app import make_app
    from kalstream.serve.service import Service
    from kalstream.serve.tokens import Tokens

    # One thread learns while others predict: more threads of BLAS would fight for the cores, and
    # how many there are may change the last bits of what is learned.
    threadpool_limits(1, user_api="blas")
    tokens = Tokens.read(data)
    if host not in _LOOPBACK and not tokens.rights:
        raise InvalidOption(
            f"--host is {host}, so others can reach the service, and there is no token; make one "
            f"with: kalstream token NAME --rights predict,learn --data {data}"
        )
    if run is not None:
        values["origin"] = str(run)
    options = options_of(values)
    with when_compiling(lambda: out.print("compiling, once on this machine")):
        warm_up()
    begin_logging(log)
    service = Service(data, keep_log=keep_log, checkpoint_every=checkpoint_every)
    try:
        service.start()
        service.begin(name or (run.stem if run is not None else "default"), options)
        asgi = make_app(service, tokens=tokens, hosts=(host, *(allow_host or ())))
        listening = _listening(host, port)
        where = f"http://{'localhost' if host in _LOOPBACK else host}:{listening.getsockname()[1]}"
        for served in service.models.values():
            out.print(f"{escaped(served.name)}: {served.stream.task}, {served.n_rows:,} rows")
        out.print(f"serving at {where} (Ctrl-C stops it; data in {escaped(str(data))})")
        for each in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises it again when it has ended
            signal.signal(each, lambda *_: None)
        # What is there now stays: without this, each full collection looks at some 300,000 objects
        # of modules while all requests wait.
        gc.collect()
        gc.freeze()
        settings = uvicorn.Config(
            asgi, log_config=None, access_log=False, timeout_graceful_shutdown=_PATIENCE
        )
        uvicorn.Server(settings).run(sockets=[listening])
    finally:
        service.stop()
    err.print("stopped; everything that was acknowledged is saved")


def _listening(host: str, port: int) -> socket.socket:
    """A socket, or an error that names the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends small answers at once (TCP_NODELAY); without, the body
    # of each waits some 40 ms for the client's acknowledgement of the header.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(1024)
    except OSError as error:
        made.close()
        raise InvalidOption(
            f"--port {port} of {host} cannot be used ({error.strerror}); give another --port"
        ) from None
    return made


@app.command("token", help=_TOKEN_HELP)
def token(  # noqa: D103
    name: Annotated[str, typer.Argument(help="Who has the token.")],
    *,
    rights: Annotated[str, typer.Option(help="Some of read, predict, learn, admin.")] = "read",
    data: Data = _DATA,
) -> None:
    from kalstream.serve.tokens import make_token

    wanted = [right.strip() for right in rights.split(",") if right.strip()]
    made = make_token(data, name, wanted)
    if wanted:
        out.print(made, highlight=False, soft_wrap=True)
        err.print("It cannot be shown again. A service that runs reads it at its next start.")
