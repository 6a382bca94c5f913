"""The command `kalstream`, also as `python -m kalstream`."""

import os
import signal


def main() -> None:
    """Import the command line, which takes about a second, and run it.

    An interrupt during the import ends the process at once, with status 130: nothing has begun.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not if a shell ignores interrupts for a job
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from kalstream.cli import main as run

    signal.signal(signal.SIGINT, usual)
    run()


if __name__ == "__main__":
    main()
