"""Short runs give the numbers of the golden files; __main__.py compares bit for bit."""

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
def test_numbers_have_not_changed(name: str) -> None:
    numbers = cases.CASES[name]()
    with np.load(FOLDER / f"{name}.npz") as file:
        expected = cases.unpacked(file)
    assert set(expected) == set(numbers)
    for key in expected:
        np.testing.assert_allclose(numbers[key], expected[key], rtol=1e-9, atol=1e-9, err_msg=key)
