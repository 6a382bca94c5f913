"""Golden files: ``python tests/golden [--write FOLDER | --bits FOLDER] [CASE ...]``.

``--write`` writes the numbers of the cases, ``--bits`` compares them bit for bit: before and
after a change of structure, on one machine. Tests compare with the files kept here, to 1e-9.
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, LOCAL, Numbers, packed, unpacked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--bits", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    folder = args.write or args.bits or parser.error("give --write or --bits")
    folder.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    failed = []
    for name, case in (CASES | LOCAL).items():
        if args.cases and name not in args.cases:
            continue
        found, path = case(), folder / f"{name}.npz"
        if args.write:
            np.savez_compressed(path, **packed(found))
            continue
        with np.load(path) as kept:
            differences = unequal(unpacked(kept), found)
        print(name, "equal" if not differences else differences[:8], flush=True)
        failed += [name] if differences else []
    return int(bool(failed))


def unequal(kept: Numbers, found: Numbers) -> list[str]:
    """Names of what differs in any bit, or is in one of the two only."""
    same = {
        name
        for name in kept.keys() & found.keys()
        if np.array_equal(kept[name], found[name], equal_nan=True)
    }
    return sorted((kept.keys() | found.keys()) - same)


if __name__ == "__main__":
    sys.exit(main())
