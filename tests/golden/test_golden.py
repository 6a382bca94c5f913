"""Short runs give the numbers that they have always given; see __main__.py for bit equality."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("golden_cases", FOLDER / "cases.py")
assert _spec is not None
assert _spec.loader is not None
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)


@pytest.mark.parametrize("name", list(cases.CASES))
@pytest.mark.filterwarnings("ignore")
def test_numbers_are_as_ever(name: str) -> None:
    found = cases.CASES[name]()
    with np.load(FOLDER / f"{name}.npz") as file:
        kept = cases.unpacked(file)
    assert set(kept) == set(found)
    for key in kept:
        np.testing.assert_allclose(found[key], kept[key], rtol=1e-9, atol=1e-9, err_msg=key)
