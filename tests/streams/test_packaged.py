"""The packaged tables equal the published ones, and other data sets say how to get them."""

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from kalstream.errors import InvalidInput
from kalstream.streams.packaged import KNOWN, attribution, path_of

SHA256 = {  # of elec.csv and weather.csv in scikit-multiflow-0.4.1.tar.gz
    "elec2": "ebdfe5480ae25a43a7d054286135e3a9484697a2850d5158a333b1578c28bb97",
    "weather": "3c38f05bdc5c4cb115f122414c66976e3662c875d96d7199d9e47fc46aff150e",
}


@pytest.mark.parametrize("name", SHA256)
def test_a_packaged_file_equals_the_published_one(name: str) -> None:
    text = gzip.decompress(path_of(name).read_bytes())
    assert hashlib.sha256(text).hexdigest() == SHA256[name]
    header, *rows = text.decode().splitlines()
    known = KNOWN[name]
    assert len(rows) == known.rows
    assert len(header.split(",")) == 1 + int(known.features.split()[0])
    assert header.endswith(f",{known.target}")
    assert len({row.rsplit(",", 1)[1] for row in rows}) == known.classes


@pytest.mark.parametrize("name", SHA256)
def test_a_packaged_file_equals_that_of_the_data_folder(name: str) -> None:
    if not os.environ.get("KALSTREAM_DATA"):
        pytest.skip("KALSTREAM_DATA is not set")
    csv = Path(os.environ["KALSTREAM_DATA"]) / "streams" / f"{name}.csv"
    assert gzip.decompress(path_of(name).read_bytes()) == csv.read_bytes()


def test_known_data_sets() -> None:
    assert [name for name, known in KNOWN.items() if known.packaged] == list(SHA256)
    for name, known in KNOWN.items():
        assert known.name == name
        assert known.description
        assert known.source
        assert known.layout


@pytest.mark.parametrize(("name", "says"), [("cifar100", "tar.gz"), ("mnist", "not a known")])
def test_other_data_sets_say_how_to_get_them(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name}.*{says}.*use: elec2, weather"):
        path_of(name)


def test_the_licence_and_the_sources_are_named() -> None:
    text = attribution()
    for words in ("Copyright (c) 2017, scikit-multiflow", "Harries", "Elwell", "AS IS", "NOAA"):
        assert words in text
