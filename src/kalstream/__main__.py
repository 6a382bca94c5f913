"""`python -m kalstream` is the command `kalstream`."""

from kalstream.cli import main

if __name__ == "__main__":
    main()
