"""A checkpoint is read back bit for bit, or refused with a reason."""

import json
import os
import stat
import struct
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save, save_file
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from kalstream import __version__
from kalstream.core import Calibration, Fixed, Learned, Mixture, Posterior, add_outputs
from kalstream.core.bank import BankArrays
from kalstream.core.state import Base
from kalstream.errors import CheckpointError, DonatedState
from kalstream.estimators import checkpoint
from kalstream.features import OnlineScaler, RandomFourierFeatures

BIT_GENERATORS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ckpt"


def back(path: Path, tree: Any) -> Any:
    checkpoint.write(path, "Thing", tree)
    return checkpoint.read(path, "Thing")


def same(a: Any, b: Any) -> bool:
    """Equal in type, order and every bit, memory order included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        if a.dtype == object:
            return a.shape == b.shape and all(map(same, a.flat, b.flat))
        alike = a.dtype == b.dtype and a.dtype.str == b.dtype.str and a.shape == b.shape
        flags = not (a.flags.forc and b.flags.forc) or (
            a.flags.c_contiguous == b.flags.c_contiguous
            and a.flags.f_contiguous == b.flags.f_contiguous
        )
        return alike and a.tobytes() == b.tobytes() and flags and b.flags.writeable
    if isinstance(a, np.str_ | np.bytes_):
        return a.item() == b.item()
    if isinstance(a, np.generic):
        return a.dtype.str == b.dtype.str and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, Posterior):
        return same(a.stored, b.stored)
    if isinstance(a, Base | BankArrays):  # only one triangle of a covariance counts
        meant = np.tril if isinstance(a, Base) else np.triu
        return same(a.mean, b.mean) and same(meant(a.cov), meant(b.cov))
    if is_dataclass(a):
        names = [f.name for f in fields(a) if f.name not in ("room", "memo")]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, OnlineScaler | RandomFourierFeatures):
        return same(vars(a), vars(b))
    if isinstance(a, np.random.Generator):
        return same(a.bit_generator.state, b.bit_generator.state)
    return bool(a == b)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(st.characters(codec=None, exclude_categories=()))
    | st.binary()
    | hnp.scalar_dtypes().flatmap(hnp.from_dtype).filter(lambda x: isinstance(x, np.generic))
)
dtypes = (
    hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes()
)  # with both byte orders, complex, datetime64 and timedelta64


def objects(items: list[Any]) -> Any:
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    array = draw(hnp.arrays(draw(dtypes), shape))
    axes = draw(st.permutations(range(array.ndim)))
    return array.transpose(axes)


trees = st.recursive(
    scalars | arrays(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(scalars | st.tuples(scalars, scalars), inner)
        | st.lists(inner, max_size=3).map(objects)
    ),
    max_leaves=20,
)


@settings(max_examples=300)
@given(tree=trees)
def test_any_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.ckpt"
    assert same(back(path, tree), tree)


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        {(10**5000,): 10**5000},
        -(2**63),
        -0.0,
        float("inf"),
        struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0],  # a NaN with sign and payload
        "\ud800\udc00 two lone surrogates",
        {1: "a", False: "b", (1, (2.0,)): None, b"\0": [], np.float32(3.0): {}},
        np.str_("zeros at the end\0\0"),
        np.bytes_(b"a\0"),
        np.float32("nan"),
        np.datetime64("NaT"),
        np.datetime64("2024-02-29T12", "25s"),
        np.longdouble(1) / 3,
        np.complex128(complex("nan-0j")),
        np.array(["été", ""], dtype="U7"),
        np.zeros((3, 0, 2), np.float32),
        np.array(5, dtype=">i4"),
        np.array([["b", None], [1, ("c",)]], dtype=object),
        np.array([np.nan, -0.0, np.inf]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_awkward_values(path: Path, value: Any) -> None:
    assert same(back(path, value), value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, ">f8"])
def test_layout_in_memory_comes_back(path: Path, dtype: Any) -> None:
    cube = np.arange(120).astype(dtype).reshape(4, 5, 6)
    column = np.asfortranarray(cube[0, :, :1])
    kept = [cube, np.asfortranarray(cube), cube.transpose(0, 2, 1), cube.transpose(1, 2, 0), column]
    for was, now in zip(kept, back(path, kept), strict=True):
        assert same(was, now)
        assert was.strides == now.strides
    assert column.strides == (column.itemsize, 5 * column.itemsize)  # other strides than in C order
    loose = [
        cube[:, :2],
        cube[::2],
        cube[..., ::-1],
        cube[0, :, 0],
        np.broadcast_to(cube[0, 0], (3, 6)),
    ]
    for was, now in zip(loose, back(path, loose), strict=True):
        assert now.tobytes() == was.tobytes()
        assert now.flags.writeable


def test_a_small_piece_of_a_large_array_does_not_bring_it_along(path: Path) -> None:
    back(path, np.zeros((1000, 1000))[:, :3])
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize("name", BIT_GENERATORS)
@pytest.mark.parametrize("wrap", [np.random.Generator, np.random.RandomState])
def test_generators_continue(path: Path, name: str, wrap: Any) -> None:
    rng = wrap(getattr(np.random, name)(3))
    rng.standard_normal(7)  # RandomState keeps the second number of a pair
    rng.bytes(5)  # and other generators keep half a word
    again = back(path, rng)
    for _ in range(3):
        assert same(again.standard_normal(1001), rng.standard_normal(1001))
        assert again.bytes(5) == rng.bytes(5)
    if wrap is np.random.Generator:
        rng.spawn(2)
        again = back(path, rng)
        assert again.spawn(1)[0].random() == rng.spawn(1)[0].random()


def test_legacy_seed_continues(path: Path) -> None:
    rng = np.random.RandomState(0)
    rng.normal()
    again = back(path, rng)
    assert same(again.normal(size=9), rng.normal(size=9))


def test_generators_in_two_places_remain_one(path: Path) -> None:
    rng = np.random.default_rng(0)
    old = np.random.RandomState(rng.bit_generator)
    features = RandomFourierFeatures(random_state=rng)
    first, second, third, other = back(path, [rng, features, old, np.random.default_rng(0)])
    assert first is second.random_state
    assert first is not other
    for _ in range(3):
        assert first.random() == rng.random()
        assert second.random_state.random() == rng.random()
        assert third.random_sample() == old.random_sample()


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(0.25, Calibration(2.0, 0.5)),
        Learned(0.9, 0.3, 2, calibrated=False),
        Mixture((1.0, float("inf")), 0.1, (3.0,), "probit"),
        Calibration.fixed(3.0).start(),
        OnlineScaler(3.0, half_life=7.0),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_policies_come_back(path: Path, policy: Any) -> None:
    assert same(back(path, policy), policy)


POLICIES = {
    "fixed": Fixed(0.99),
    "learned": Learned(lr=0.1, calibration=Calibration()),
    "mixture": Mixture((3.0, 30.0, float("inf")), calibrations=(1.0, 3.0)),
    "one": Mixture((30.0,), calibrations=(1.0,)),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "before", [[], [1], [1, 1, 2], [1] * 12, [70, 1, 1], [5], [3, 40]], ids=str
)
def test_states_continue_bit_for_bit(path: Path, name: str, dtype: Any, before: list[int]) -> None:
    policy, rng, m = POLICIES[name], np.random.default_rng(len(before)), 37
    variances = {"noise_var": 0.3, "prior_var": 1 / m}

    def chunk(n: int) -> tuple[Any, Any]:
        return rng.normal(size=(n, m)), rng.integers(3, size=n)

    state = policy.start(m, 3, prior_var=1 / m, dtype=dtype)
    for n in before:
        x, y = chunk(n)
        policy.predict(state, x, prior_var=1 / m)
        state, _ = policy.step_chunk(state, x, y, **variances)
    x, y = chunk(1)
    policy.predict(state, x, prior_var=1 / m)  # its cached products must not matter
    again = back(path, state)
    assert same(again, state)
    for n in (1, 1, 3, 1, 9, 1, 1, 50, 1):
        told, other = (policy.predict(s, x, prior_var=1 / m) for s in (state, again))
        assert same(told, other)
        state, told = policy.step_chunk(state, x, y, **variances)
        again, other = policy.step_chunk(again, x, y, donate=True, **variances)
        assert same(told, other)
        assert same(again, state)
        x, y = chunk(n)
    grown, other = state.add_outputs(2), back(path, state.add_outputs(2))
    assert same(
        policy.step_chunk(grown, x, y, **variances), policy.step_chunk(other, x, y, **variances)
    )


def test_posteriors_that_shared_arrays_own_theirs(path: Path) -> None:
    posterior = Posterior(np.ones((3, 2)), np.eye(3))
    first, second = back(path, [posterior, add_outputs(posterior, 1)])
    assert not first.stored.base.lent
    assert not np.shares_memory(first.stored.base.cov, second.stored.base.cov)
    assert same(second.mean, add_outputs(posterior, 1).mean)
    state = Fixed(0.5).start(3, 2, prior_var=1.0)
    one, two = back(path, (state, state))
    arguments = np.ones((9, 3)), np.zeros(9, int)
    before = two.posterior.cov
    Fixed(0.5).step_chunk(one, *arguments, noise_var=1.0, prior_var=1.0, donate=True)
    assert same(two.posterior.cov, before)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_state_that_was_given_away_is_not_saved(path: Path, policy: Any) -> None:
    state = policy.start(2, 2, prior_var=1.0)
    policy.step_chunk(state, np.ones((9, 2)), [0] * 9, noise_var=1.0, prior_var=1.0, donate=True)
    with pytest.raises(DonatedState):
        checkpoint.write(path, "Thing", state)
    assert not os.listdir(path.parent)


@pytest.mark.parametrize(
    "features",
    [OnlineScaler(half_life=5.0), RandomFourierFeatures(9, random_state=np.random.default_rng(1))],
    ids=["scaler", "fourier"],
)
def test_features_continue(path: Path, features: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4))
    features.advance(rows)
    # scikit-learn keeps the column names of a DataFrame as an array of objects
    features.feature_names_in_ = np.array(["a", "b", "c", "d"], dtype=object)
    again = back(path, features)
    del features.feature_names_in_, again.feature_names_in_
    for _ in range(3):
        assert same(again.advance(rows), features.advance(rows))
    assert same(again, features)


def test_foreign_transformers(path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    scaler = StandardScaler(with_mean=False).fit(rows)
    saved = back(path, {"features": checkpoint.foreign(scaler)})["features"]
    template = StandardScaler()
    again = checkpoint.fill(template, saved)
    assert again is template
    assert same(again.transform(rows), scaler.transform(rows))
    assert same(again.partial_fit(rows).var_, scaler.partial_fit(rows).var_)
    wrong = MinMaxScaler()
    with pytest.raises(CheckpointError, match=r"class sklearn.*StandardScaler, but .*MinMaxScale"):
        checkpoint.fill(wrong, saved)
    assert same(vars(wrong), vars(MinMaxScaler()))


def test_foreign_classes_may_move_within_their_package_only() -> None:
    saved = checkpoint.Foreign("sklearn.elsewhere.StandardScaler", {"mean_": 1.0})
    assert checkpoint.fill(StandardScaler(), saved).mean_ == 1.0
    script = checkpoint.Foreign("__main__.StandardScaler", {})
    checkpoint.fill(StandardScaler(), script)
    with pytest.raises(CheckpointError, match=r"pass a cuml\.StandardScaler"):
        checkpoint.fill(StandardScaler(), checkpoint.Foreign("cuml.StandardScaler", {}))


def test_foreign_needs_attributes(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"builtins\.object, which has no __dict__"):
        checkpoint.foreign(object())
    with pytest.raises(CheckpointError, match=r"Thing\.attributes\['copy'\] is a builtins\.set"):
        checkpoint.write(path, "Thing", checkpoint.foreign(StandardScaler(copy=set())))


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, {1, 2}]}, r"^Run\['a'\]\[1\] is a builtins\.set, which .* cannot hold; convert"),
        ((Fixed, 1), r"^Run\[0\] is a abc\.ABCMeta"),
        ({"f": len}, r"^Run\['f'\] is a builtins\.builtin_function"),
        ({Text("a"): 1}, r"^Run\['a'\] is a .*Text"),
        ([np.ma.masked_array([1.0])], r"^Run\[0\] is a numpy\.ma.*MaskedArray"),
        ([np.zeros(2, "f8,i4")], r"^Run\[0\] is a numpy\.ndarray of \[\('f0'"),
        ([np.array([{1}, 2])], r"^Run\[0\]\.flat\[0\] is a builtins\.set"),
        ([np.ndarray((2,), "U0")], r"^Run\[0\] is a numpy\.ndarray of <U0"),
        (OnlineScaler(clip=range(3)), r"^Run\.clip is a builtins\.range"),
    ],
    ids=str,
)
def test_other_values_are_refused_by_name(path: Path, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        checkpoint.write(path, "Run", value)
    assert not os.listdir(path.parent)


def test_what_contains_itself_is_refused(path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="nests deeper than 64 levels"):
        checkpoint.write(path, "Run", loop)
    deep: Any = 0
    for _ in range(64):
        deep = [deep]
    assert back(path, deep) == deep


def test_long_lists_are_refused_while_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_LONGEST_HEADER", 1000)
    with pytest.raises(CheckpointError, match="numpy arrays"):
        checkpoint.write(path, "Run", [0.5] * 1000)
    checkpoint.write(path, "Run", np.full(1000, 0.5))


def test_the_same_tree_gives_the_same_bytes(path: Path) -> None:
    tree = {"a": np.arange(3), "b": [np.eye(2), np.float32(1)], "c": Fixed(0.5)}
    checkpoint.write(path, "Run", tree)
    first = path.read_bytes()
    checkpoint.write(path, "Run", tree)
    assert path.read_bytes() == first


def reason(path: Path, data: bytes, kind: str = "Thing") -> str:
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(path, kind)
    return str(caught.value)


def test_files_that_are_no_checkpoints(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.read(path, "Thing")
    with pytest.raises(CheckpointError, match="is a folder; pass the path"):
        checkpoint.read(tmp_path, "Thing")
    assert "not a checkpoint (an empty file)" in reason(path, b"")
    assert "not a safetensors file" in reason(path, b"gamma,half_life\n" * 99)
    for metadata in (None, {"format": "pt"}):
        save_file({"x": np.zeros(3)}, path, metadata)
        assert "not of kalstream" in reason(path, path.read_bytes())
    assert issubclass(CheckpointError, ValueError)


def test_another_kind(path: Path) -> None:
    checkpoint.write(path, "KalmanRegressor", 1)
    message = reason(path, path.read_bytes(), "KalmanClassifier")
    assert "a KalmanRegressor, not a KalmanClassifier; use KalmanRegressor.load" in message


SMALL = {"a": np.arange(3.0), "é": (1, -0.5, None), "b": np.array(["x"])}


def test_every_cut_is_noticed(path: Path) -> None:
    checkpoint.write(path, "Thing", SMALL)
    data = path.read_bytes()
    for size in range(len(data)):
        reason(path, data[:size])
    assert "damaged or cut short" in reason(path, data[:-1])
    reason(path, data + b"\0")


def test_every_changed_byte_is_noticed(path: Path) -> None:
    checkpoint.write(path, "Thing", SMALL)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(data)):
        for flip in (0x20, 1 << rng.integers(8), rng.integers(1, 256)):  # upper and lower case, ...
            wrong = bytearray(data)
            wrong[at] ^= flip
            reason(path, bytes(wrong))
    size = int.from_bytes(data[:8], "little")
    padded = data[: 7 + size] + b"\t" + data[8 + size :]  # the same JSON for other readers
    assert padded != data
    assert data[7 + size : 8 + size] == b" "
    reason(path, padded)


def forged(text: str, tensors: dict[str, Any] | None = None) -> bytes:
    """A file with a correct checksum around any tree."""
    about = f'{{"sha256":"{"0" * 64}","format":1,"version":"1","kind":"Thing","tree":{text}}}'
    data = save(tensors or {}, {"kalstream": about})
    at = data.index(checkpoint._MARK) + len(checkpoint._MARK)
    digest = checkpoint.sha256(data).hexdigest().encode()
    return data[:at] + digest + data[at + 64 :]


def bit_generator(name: str, **changes: Any) -> str:
    state = getattr(np.random, name)(0).state
    state["state"] = {
        k: v.tolist() if hasattr(v, "tolist") else v for k, v in state["state"].items()
    }
    state["state"].update({k: v for k, v in changes.items() if k in state["state"]})
    state.update({k: v for k, v in changes.items() if k in state})

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {"@dict": [[k, plain(v)] for k, v in value.items()]}
        return value.tolist() if isinstance(value, np.ndarray) else value

    return json.dumps({name: {"state": plain(state), "seeds": None}})


def test_forgery_works(path: Path) -> None:
    path.write_bytes(forged('{"@tuple":[1,{"Fixed":{"gamma":0.5,"calibration":1.0}}]}'))
    assert checkpoint.read(path, "Thing") == (1, Fixed(0.5))
    path.write_bytes(forged(bit_generator("MT19937", pos=3)))
    assert checkpoint.read(path, "Thing").state["state"]["pos"] == 3


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"@tuple":' * 100_000 + "[]" + "}" * 100_000,
        "[" * 900 + "]" * 900 + "]",
        "1" * 5000,
        "{}",
        '{"os.system":"true"}',
        '{"builtins.eval":{"x":"1"}}',
        '{"a":1,"b":2}',
        '{"@array":["none","<f8",[0],[1]]}',
        '{"@array":["x","|O8",[0],[1]]}',
        '{"@array":["x","O",[0],[1]]}',
        '{"@array":["x","<f8,|O8",[0],[1]]}',
        '{"@array":["x","<f4",[0,0],[1]]}',
        '{"@array":["x","<f8",[0,1],[1]]}',
        '{"@array":["x","<f8",[0],[1000000000000]]}',
        '{"@array":["x","<f8",[0],[-1]]}',
        '[{"@array":["x","<f8",[0],[1]]},{"@array":["x","<f8",[0],[1]]}]',
        '{"@scalar":["|O8","0000000000000000"]}',
        '{"@scalar":["<f8","00"]}',
        '{"@objects":[[1000000000000],[1]]}',
        '{"@dict":[[[],1]]}',
        '{"@dict":[[1]]}',
        '{"@same":0}',
        '{"@bytes":5}',
        '{"@float":"00"}',
        '{"Fixed":{"gamma":7.0,"calibration":1.0}}',
        '{"Fixed":{"gama":0.5}}',
        '{"Posterior":{"stored":1}}',
        '{"Generator":{"bit_generator":1}}',
        '{"PCG64":{"state":{"@dict":[]},"seeds":null}}',
        bit_generator("MT19937", pos=10**6),
        bit_generator("MT19937", key=[1, 2]),
        bit_generator("Philox", buffer_pos=-1000),
        bit_generator("PCG64", bit_generator="SFC64"),
        bit_generator("PCG64").replace("null", '{"@dict":[["pool_size",100000000000]]}'),
        '{"RandomState":{"bit_generator":1,"gauss":[0]}}',
        '{"Foreign":{"class_name":1,"attributes":{"@dict":[]}}}',
        '{"OnlineScaler":[]}',
    ],
    ids=lambda text: text[:40],
)
def test_malicious_files_are_refused(path: Path, text: str) -> None:
    refused = reason(path, forged(text, {"x": np.zeros(1)}))
    assert "is damaged" in refused or "which no imported module defines" in refused


def test_states_whose_parts_disagree_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code would read and write beyond their arrays."""
    features = np.ones((1, 5))
    state, _ = Fixed(0.9).step_chunk(
        Fixed(0.9).start(5, 2, prior_var=1.0), features, [1], noise_var=1.0, prior_var=1.0
    )
    policy = Mixture((1.0, 2.0))
    mixed, _ = policy.step_chunk(
        policy.start(5, 2, prior_var=1.0), features, [1], noise_var=1.0, prior_var=1.0
    )
    scaler = OnlineScaler().fit(features)
    stored = state.posterior.stored
    # (object to save, owner of the changed part, name of the part, change)
    cases: list[tuple[Any, Any, str]] = [
        (state, state, "seen"),
        (state, stored, "rows"),
        (state, stored, "coefficients"),
        (state, stored.base, "mean"),
        (state, stored.base, "cov"),
        (mixed, mixed, "seen"),
        (mixed, mixed, "log_weights"),
        (mixed, mixed.bank, "rows"),
        (mixed, mixed.bank, "scales"),
        (mixed, mixed.bank.stored, "cov"),
        (scaler, scaler, "mean_"),
        (scaler, scaler, "_spread"),
    ]
    parts = checkpoint._parts
    for saved, owner, name in cases:
        array = getattr(owner, name)
        assert isinstance(array, np.ndarray)
        for wrong in (array[..., :1], np.repeat(array, 2, axis=0), array.astype("c16"), 0.5, None):

            def changed(value: Any, owner=owner, name=name, wrong=wrong) -> Any:
                return {**parts(value), name: wrong} if value is owner else parts(value)

            monkeypatch.setattr(checkpoint, "_parts", changed)
            checkpoint.write(path, "Thing", saved)
            with pytest.raises(CheckpointError, match="damaged"):
                checkpoint.read(path, "Thing")


def test_newer_formats_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
        patch.setattr(checkpoint, "__version__", "9.1")
        checkpoint.write(path, "Thing", 1)
    message = reason(path, path.read_bytes())
    assert f"written by kalstream 9.1 in format {checkpoint.FORMAT + 1}" in message
    assert f"kalstream {__version__} reads up to {checkpoint.FORMAT}; upgrade" in message


def test_older_formats_are_migrated_in_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 1)
        checkpoint.write(path, "Thing", [Fixed(0.5), np.arange(4)])

    def renamed(tree: Any) -> Any:
        """As if Fixed had been called with half-lives, and arrays halved."""
        policy, array = tree
        assert array.tolist() == [0, 1, 2, 3]
        return [{"Fixed": {**policy["Fixed"], "gamma": 0.25}}, array[:2]]

    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    monkeypatch.setitem(checkpoint.MIGRATIONS, 1, renamed)
    monkeypatch.setitem(checkpoint.MIGRATIONS, 2, lambda tree: {"@tuple": tree})
    policy, array = tree = checkpoint.read(path, "Thing")
    assert type(tree) is tuple
    assert policy == Fixed(0.25)
    assert array.tolist() == [0, 1]
    assert type(back(path, [1])) is list  # the current format is not migrated


def test_every_format_has_its_migration() -> None:
    assert set(checkpoint.MIGRATIONS) == set(range(1, checkpoint.FORMAT))


@pytest.mark.parametrize("broken", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("no space"), KeyboardInterrupt()], ids=repr)
def test_a_failure_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    checkpoint.write(path, "Thing", "old")

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fail)
        with pytest.raises(type(error)):
            checkpoint.write(path, "Thing", "new")
    assert checkpoint.read(path, "Thing") == "old"
    assert os.listdir(path.parent) == [path.name]


def test_a_value_that_cannot_be_saved_leaves_the_old_file(path: Path) -> None:
    checkpoint.write(path, "Thing", "old")
    with pytest.raises(CheckpointError):
        checkpoint.write(path, "Thing", [np.zeros(3), set()])
    assert checkpoint.read(path, "Thing") == "old"
    assert os.listdir(path.parent) == [path.name]


def test_a_folder_that_cannot_be_flushed_is_no_failure(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, flushed = os.fsync, []

    def files_only(descriptor: int) -> None:
        flushed.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if flushed[-1]:
            raise OSError("not on this platform")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert back(path, 1) == 1
    assert flushed == [False, True]


def test_where_nothing_can_be_written(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder, create it first") as caught:
        checkpoint.write(tmp_path / "none" / "a.ckpt", "Thing", 1)
    assert caught.value.filename == str(tmp_path / "none")
    with pytest.raises(CheckpointError, match="is a folder"):
        checkpoint.write(tmp_path, "Thing", 1)
    with pytest.raises(CheckpointError, match="not a regular file"):
        checkpoint.write(os.devnull, "Thing", 1)
    assert not os.listdir(tmp_path)


def test_relative_paths_and_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.write("a.ckpt", "Thing", 1)
    assert checkpoint.read("a.ckpt", "Thing") == 1


@pytest.mark.skipif(os.name != "posix", reason="permission bits and links of POSIX")
def test_permissions_are_those_of_any_file(path: Path) -> None:
    before = os.umask(0o027)
    try:
        checkpoint.write(path, "Thing", 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        checkpoint.write(path, "Thing", 2)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="permission bits and links of POSIX")
@pytest.mark.parametrize("there", [True, False], ids=["full", "dangling"])
def test_links_stay_links(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "b.ckpt", tmp_path / "a.ckpt"
    if there:
        checkpoint.write(target, "Thing", "old")
    link.symlink_to(target)
    checkpoint.write(link, "Thing", "new")
    assert link.is_symlink()
    assert checkpoint.read(target, "Thing") == checkpoint.read(link, "Thing") == "new"
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("forgetting", ["mixture", "learned", 0.9])
@pytest.mark.parametrize("random_state", [0, np.random.default_rng(0), np.random.RandomState(0)])
def test_what_was_loaded_is_saved_as_the_same_bytes(
    forgetting: Any, random_state: Any, tmp_path: Path
) -> None:
    from kalstream import KalmanClassifier

    model = KalmanClassifier(forgetting, n_components=4, random_state=random_state)
    model.partial_fit(np.eye(5), list("abcab"))
    model.save(tmp_path / "one")
    KalmanClassifier.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_has_the_bytes_that_safetensors_writes(path: Path) -> None:
    kinds = ("?", "u1", "i1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<f8", "<i8", "<u8")
    tree = {f"{kind} \u00e9\n{n}": np.ones(n, kind) for n in (0, 1, 3, 12) for kind in kinds}
    checkpoint.write(path, "Run", tree | {"text": 'a"\\\x01\u20ac', "matrix": np.ones((2, 0, 3))})
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size])["__metadata__"]
    assert save(load_file(path), about) == data
