"""Golden files: ``python tests/golden [--write FOLDER | --bits FOLDER] [CASE ...]``.

``--write`` writes the numbers of the cases, and ``--bits`` compares them bit for bit. Use them
before and after a change of structure, on one machine. The tests compare with the files of this
folder, to 1e-9.
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
        numbers, path = case(), folder / f"{name}.npz"
        if args.write:
            np.savez_compressed(path, **packed(numbers))
            continue
        with np.load(path) as file:
            differences = unequal(unpacked(file), numbers)
        print(name, "equal" if not differences else differences[:8], flush=True)
        failed += [name] if differences else []
    return int(bool(failed))


def unequal(expected: Numbers, numbers: Numbers) -> list[str]:
    """Names of numbers that differ in any bit, or exist in one of the two only."""
    same = {
        name
        for name in expected.keys() & numbers.keys()
        if np.array_equal(expected[name], numbers[name], equal_nan=True)
    }
    return sorted((expected.keys() | numbers.keys()) - same)


if __name__ == "__main__":
    sys.exit(main())
