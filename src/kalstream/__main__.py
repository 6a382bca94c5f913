"""`python -m kalstream` is `kalstream`."""

from kalstream.cli import main

if __name__ == "__main__":
    main()
