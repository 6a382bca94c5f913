r"""Checkpoints: a tree of plain values in one safetensors file, restored bit for bit, no pickle.

Arrays are the tensors of the file. One metadata entry, "kalstream", holds JSON: a SHA-256 of the
whole file, the format, the version of kalstream, the kind of what was saved, and the tree. A JSON
object with one key stands for a value that JSON lacks, ``{"@tuple": [...]}``, or for an object of
a class in `TAGGED`, ``{"Fixed": {"gamma": 0.9, ...}}``. Tags are explicit: they stay when a class
is renamed. No class is imported or looked up by a name from a file, so reading cannot run code.

Compatibility: every version of kalstream reads all earlier formats and refuses later ones. To
change the fields of a tagged class or the meaning of a tag:

1. raise `FORMAT` in `migrations`, and add a function there that turns a tree of the old format into
   one of the new;
2. here, name new classes in `TAGGED` and fields that are not saved in `_LEFT_OUT`;
3. add what must hold to `_soundness.CHECKS` (arrays that compiled code reads) or to `_saving`;
4. write files of the new format with ``python tests/estimators/test_saved_files.py``.

A forgetting policy declares the tags of its settings and of its state itself: see
`kalstream.core.policy`. Runs (`runs.files`) have migrations of their own;
networks (`deep.learner`) read only their current format.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from hashlib import sha256
from itertools import pairwise
from reprlib import repr as short
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.random import (
    MT19937,
    PCG64,
    PCG64DXSM,
    SFC64,
    BitGenerator,
    Generator,
    Philox,
    RandomState,
    SeedSequence,
)

from kalstream import __version__
from kalstream._arrays import Array
from kalstream._files import write_whole
from kalstream.core.alarm import Watch
from kalstream.core.bank import Bank, BankArrays
from kalstream.core.calibration import Alpha, Calibration
from kalstream.core.experts.expert import ExpertState
from kalstream.core.judging import Kept, LateJudge
from kalstream.core.motion import MotionBank, Pending
from kalstream.core.orders import MixedBank
from kalstream.core.stacking import Stack
from kalstream.core.state import BankStep, Base, Posterior, Stored
from kalstream.core.tagged import TAGGED
from kalstream.errors import CheckpointError
from kalstream.estimators._classification import Classes
from kalstream.estimators._model import Model
from kalstream.estimators._regression import Values
from kalstream.estimators._representation import Representation
from kalstream.estimators._soundness import CHECKS, Foreign
from kalstream.estimators._waiting import Store, Waiting
from kalstream.estimators.labels import Labels
from kalstream.estimators.migrations import FORMAT, MIGRATIONS
from kalstream.features import Aggregates, OnlineScaler, RandomFourierFeatures

FilePath = str | os.PathLike[str]

# Where the digest stands. A quote inside a string is escaped, so this occurs nowhere else.
_MARK: Final = rb'"{\"sha256\":\"'
_NO_DIGEST: Final = "0" * 64
# safetensors itself refuses to read longer headers.
_LONGEST_HEADER: Final = 100_000_000
# Far less than Python's own limit: what can be written can be read from inside any call.
_DEEPEST: Final = 64
# Numbers, booleans, dates and strings. Never "O": its bytes would be taken for pointers.
_KINDS: Final = frozenset("biufcMmUS")
# What other readers of safetensors understand as well; the rest travels as bytes. safetensors
# writes tensors of the last of these first.
_TENSORS: Final = {
    **{"|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<i2": "I16", "<u2": "U16", "<f2": "F16"},
    **{"<i4": "I32", "<u4": "U32", "<f4": "F32", "<f8": "F64", "<i8": "I64", "<u8": "U64"},
}


# Dataclasses are kept by their fields, other classes by their __dict__; `_parts` and `_whole`
# have the exceptions. A class that compiled code reads also belongs in `CHECKS`. Policies and
# their states are among `TAGGED` already.
TAGGED.update(
    {
        "Alpha": Alpha,
        "Calibration": Calibration,
        "Posterior": Posterior,
        "_Stored": Stored,
        "_Base": Base,
        "Bank": Bank,
        "_Stack": BankArrays,
        "MotionBank": MotionBank,
        "Pending": Pending,
        "MixedBank": MixedBank,
        "BankStep": BankStep,
        "Stack": Stack,
        "Model": Model,
        "Classes": Classes,
        "Values": Values,
        "Representation": Representation,
        "Labels": Labels,
        "Watch": Watch,
        "Store": Store,
        "Kept": Kept,
        "LateJudge": LateJudge,
        "Waiting": Waiting,
        "OnlineScaler": OnlineScaler,
        "RandomFourierFeatures": RandomFourierFeatures,
        "Aggregates": Aggregates,
        "Foreign": Foreign,
        "Generator": Generator,
        "RandomState": RandomState,
        "MT19937": MT19937,
        "PCG64": PCG64,
        "PCG64DXSM": PCG64DXSM,
        "Philox": Philox,
        "SFC64": SFC64,
    }
)
# What belongs to the running process: a restored state owns its arrays and has room to claim.
# `fitted` is a tree of its own in the file.
_LEFT_OUT: Final = {
    *((Stored, "room"), (Base, "lent"), (Base, "spares")),
    *((Bank, "room"), (Bank, "memo"), (MotionBank, "memo"), (Pending, "room")),
    *((BankArrays, "lent"), (BankArrays, "full"), (BankArrays, "spares")),
    *((Model, "fitted"), (Model, "row")),
}


def write(
    path: FilePath, kind: str, tree: Any, check: Callable[[Any], object] | None = None
) -> None:
    """Write a tree to one file, whole or not at all.

    Takes None, bool, int, float, str, bytes, list, tuple, dict, numpy scalars, arrays and
    generators, and objects of the classes in `TAGGED`. Arrays keep the order of their axes in
    memory, on which the last bits of products depend; views become dense. A generator or
    a scaler in two places remains one; anything else in two places becomes two.

    Parameters
    ----------
    path : path of the file
        Replaced if it is there; a symbolic link stays, and what it points to is replaced.
    kind : str
        What the tree is of, such as "KalmanClassifier"; `read` asks for the same.
    tree : any of the above
    check : function, optional
        Gets the tree that `read` would return. If it raises, or if the tree cannot be read, nothing
        is written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write(f"{folder}/run.ckpt", "Run", {"weights": np.arange(3.0), 7: (None, -0.0)})
    ...     read(f"{folder}/run.ckpt", "Run")
    {'weights': array([0., 1., 2.]), 7: (None, -0.0)}
    """
    target = _file(os.path.realpath(path))
    encoder = _Encoder()
    about = {"sha256": _NO_DIGEST, "format": FORMAT, "version": __version__, "kind": kind}
    about["tree"] = encoder.node(tree, kind)
    text = json.dumps(about, allow_nan=False, separators=(",", ":"))
    header = len(json.dumps(text)) + sum(
        120 + 21 * array.ndim + len(json.dumps(name)) for name, array in encoder.tensors.items()
    )
    if header > _LONGEST_HEADER:  # safetensors would raise an error of its own
        raise CheckpointError(
            f"the {kind} has too many values outside arrays ({len(text)} characters); turn its "
            "long lists into numpy arrays"
        )
    if check is not None:
        try:
            check(_restored(text, _read_only(encoder.tensors), FORMAT, build=False))
        except MemoryError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"the {kind} could not be read again from {path}, so nothing was written "
                f"({error}); save an earlier snapshot of it, or call reset()"
            ) from error
    top, body = _laid_out(encoder.tensors, text)
    start = top.index(_MARK) + len(_MARK)
    digest = sha256(top)
    for part in body:
        digest.update(part)
    own = digest.hexdigest().encode()
    write_whole(target, (top[:start], own, top[start + len(own) :], *body))


def _laid_out(tensors: dict[str, Array], text: str) -> tuple[bytes, list[memoryview]]:
    """A file of safetensors: its length and header, and the bytes of its tensors.

    It has the same bytes as those of `safetensors.numpy.save`, which copies all tensors twice.
    """
    kinds = list(_TENSORS)
    names = sorted(tensors, key=lambda name: (-kinds.index(tensors[name].dtype.str), name.encode()))
    entries: dict[str, Any] = {"__metadata__": {"kalstream": text}}
    stop = 0
    for name in names:
        array = tensors[name]
        start, stop = stop, stop + array.nbytes
        kind, shape = _TENSORS[array.dtype.str], list(array.shape)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    body = [tensors[name].reshape(-1).view(np.uint8).data for name in names]
    return len(header).to_bytes(8, "little") + header, body


def _read_only(tensors: dict[str, Array]) -> dict[str, Array]:
    """Views of arrays, which may be those of the model."""
    views = {name: array.view() for name, array in tensors.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def read(path: FilePath, kind: str) -> Any:
    """Read the tree that `write` wrote under the same kind.

    Raises
    ------
    CheckpointError
        The file is not a checkpoint, is damaged, newer than this kalstream, or of another kind.
    """
    damaged = f"{path} is damaged or cut short; take another copy of it"
    with open(_file(path), "rb") as file:
        header, about = _header(path, file)
        # Only what the header describes is read: nothing of a file that it does not fit.
        ends = _ends(header)
        if os.fstat(file.fileno()).st_size != 8 + len(header) + (ends[-1] if ends else 0):
            raise CheckpointError(f"{damaged} (its length is not the one in its header)")
        parts = [np.empty(end - start, np.uint8) for start, end in pairwise([0, *ends])]
        for part in parts:
            file.readinto(part.data)
    try:
        start = header.index(_MARK) + len(_MARK)
        digest = sha256(len(header).to_bytes(8, "little") + header[:start])
        digest.update(_NO_DIGEST.encode() + header[start + len(_NO_DIGEST) :])
        for part in parts:
            digest.update(part.data)
        if about["sha256"] != digest.hexdigest():
            raise CheckpointError(f"{damaged} (its checksum is wrong)")
        if about["kind"] != kind:
            raise CheckpointError(
                f"{path} holds a {about['kind']}, not a {kind}; use {about['kind']}.load"
            )
        text = json.loads(header)["__metadata__"]["kalstream"]
        return _restored(text, _tensors(header, parts), about["format"])
    except (CheckpointError, MemoryError):
        raise
    except _UnknownTag as error:
        raise CheckpointError(f"{path} {error}") from error
    except Exception as error:  # a nonsensical file with a right checksum can raise anything
        raise CheckpointError(f"{damaged} ({type(error).__name__}: {error})") from error


def _tensors(header: bytes, parts: list[Array]) -> dict[str, Array]:
    """The tensors of a file; like safetensors, it refuses gaps between them."""
    kinds = {kind: dtype for dtype, kind in _TENSORS.items()}
    tensors, stop = {}, 0
    for (name, entry), part in zip(_entries(header), parts, strict=True):
        start, end = entry["data_offsets"]
        if start != stop:
            raise ValueError("there are gaps between its tensors")
        stop = end
        tensors[name] = part.view(kinds[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def _restored(text: str, tensors: dict[str, Array], number: int, *, build: bool = True) -> Any:
    """The tree in the metadata of a file of this format; see `_Decoder` for ``build``."""
    tree = json.loads(text, object_hook=lambda node: _array(node, tensors))["tree"]
    for each in range(number, FORMAT):
        tree = MIGRATIONS[each](tree)
    return _Decoder(build).value(tree)


def kind_of(path: FilePath) -> str:
    """What a file that `write` wrote holds; only its header is read."""
    with open(_file(path), "rb") as file:
        return str(_header(path, file)[1]["kind"])


def _header(path: FilePath, file: BinaryIO) -> tuple[bytes, dict[str, Any]]:
    """The header of a file of safetensors, and in it what is written about the tree."""
    damaged = f"{path} is damaged or cut short; take another copy of it"
    start = file.read(9)
    if start[8:] != b"{":
        what = "not a safetensors file" if start else "an empty file"
        raise CheckpointError(f"{path} is not a checkpoint ({what}); pass a file that save wrote")
    size = int.from_bytes(start[:8], "little")
    if size > min(_LONGEST_HEADER, os.fstat(file.fileno()).st_size - 8):
        raise CheckpointError(f"{damaged} (its header cannot be {size} bytes long)")
    header = start[8:] + file.read(size - 1)
    try:
        about = json.loads(json.loads(header).get("__metadata__", {}).get("kalstream", "null"))
        if about is None:
            raise CheckpointError(
                f"{path} is a safetensors file, but not of kalstream; pass a file that save wrote"
            )
        # First of all: a newer format need not have any of the rest.
        if about["format"] > FORMAT:
            raise CheckpointError(
                f"{path} was written by kalstream {about['version']} in format {about['format']}, "
                f"kalstream {__version__} reads up to {FORMAT}; upgrade kalstream"
            )
        if not {"sha256", "format", "version", "kind", "tree"} <= set(about):
            raise ValueError(f"its header has only the entries {', '.join(map(str, about))}")
        return header, about
    except CheckpointError:
        raise
    except Exception as error:  # JSON of any kind, nested to any depth
        raise CheckpointError(f"{damaged} ({type(error).__name__}: {error})") from error


def _entries(header: bytes) -> list[tuple[str, dict[str, Any]]]:
    """What a header says of each tensor, in the order of the file."""
    entries = [(name, each) for name, each in json.loads(header).items() if name[:2] != "__"]
    return sorted(entries, key=lambda pair: pair[1]["data_offsets"])


def _ends(header: bytes) -> list[int]:
    """Where each tensor ends, as a header has it; -1 if it makes no sense."""
    try:
        ends = [each["data_offsets"][1] for _, each in _entries(header)]
        sound = all(type(end) is int for end in ends) and ends == sorted(ends)
        return ends if sound and min(ends, default=0) >= 0 else [-1]
    except (KeyError, IndexError, TypeError, AttributeError):
        return [-1]


def foreign(obj: Any) -> Foreign:
    """What `write` can keep of an object of any class, such as scikit-learn's StandardScaler.

    Its attributes must be values that `write` takes. Only `fill` can restore it.
    """
    if not hasattr(obj, "__dict__"):
        raise CheckpointError(
            f"{_shown(obj)} is a {_name(type(obj))}, which has no __dict__ to save; leave it out"
        )
    return Foreign(_name(type(obj)), dict(vars(obj)))


def fill(template: Any, saved: Foreign) -> Any:
    """Give an object of the class that was saved the attributes it had, and return it."""
    own, was = _name(type(template)), saved.class_name
    # Between versions a library moves its classes about, and a script becomes a module.
    packages = {name.partition(".")[0] for name in (own, was)} - {"__main__"}
    if own.rpartition(".")[2] != was.rpartition(".")[2] or len(packages) > 1:
        raise CheckpointError(
            f"the checkpoint has the attributes of class {was}, but features is of class {own}; "
            f"pass a {was}"
        )
    vars(template).update(saved.attributes)
    return template


class _Encoder:
    """Turns values into JSON, and collects arrays on the way."""

    def __init__(self) -> None:
        self.tensors: dict[str, Array] = {}
        self.shared: dict[int, int] = {}

    def node(self, value: Any, path: str, depth: int = 0) -> Any:
        """JSON of a value; path is where it stands in the tree, for messages."""
        if depth > _DEEPEST:
            raise CheckpointError(
                f"{path[:100]}... nests deeper than {_DEEPEST} levels; flatten it, and remove "
                "objects that contain themselves"
            )
        cls = type(value)
        if value is None or cls is bool:
            return value
        if cls is int:  # json would refuse more than 4300 digits
            return value if abs(value) < 2**63 else {"@int": hex(value)}
        if cls is float:  # repr, which json writes, is exact
            return value if math.isfinite(value) else {"@float": struct.pack("<d", value).hex()}
        if cls is str:  # json would join two lone surrogates into one character
            clean = value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
            return value if clean else {"@str": value.encode("utf-8", "surrogatepass").hex()}
        if cls is bytes:
            return {"@bytes": value.hex()}
        if cls is list or cls is tuple:
            items = [self.node(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
            return items if cls is list else {"@tuple": items}
        if cls is dict:
            pairs = []
            for key, part in value.items():
                place = f"{path}[{_shown(key)}]"
                pairs.append([self.node(v, place, depth + 1) for v in (key, part)])
            return {"@dict": pairs}
        if cls is np.ndarray and value.dtype == object:
            items = [self.node(v, f"{path}.flat[{i}]", depth + 1) for i, v in enumerate(value.flat)]
            return {"@objects": [list(value.shape), items]}
        if cls is np.ndarray and value.dtype.kind in _KINDS and value.dtype.itemsize:
            return {"@array": self.array(value, path)}
        if cls is np.str_ or cls is np.bytes_:  # as arrays they would lose trailing zeros
            return {"@text": self.node(value.item(), path, depth + 1)}
        if isinstance(value, np.generic) and value.dtype.type is cls and value.dtype.kind in _KINDS:
            return {"@scalar": [value.dtype.str, value.tobytes().hex()]}
        for name, known in TAGGED.items():
            if known is cls:
                return self.object(name, value, path, depth + 1)
        kind = f"{_name(cls)} of {value.dtype}" if cls is np.ndarray else _name(cls)
        raise CheckpointError(
            f"{path} is a {kind}, which a checkpoint cannot hold; convert it to plain numbers, "
            "strings, lists, tuples, dicts or numpy arrays, or leave it out"
        )

    def array(self, value: Array, path: str) -> list[Any]:
        """Store an array with its slowest axis first, and how it lay in memory."""
        axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
        dense = np.asarray(value.transpose(axes), order="C")
        if value.dtype.str not in _TENSORS:
            dense = dense[..., None].view(np.uint8)
        name = f"{len(self.tensors)}:{path}"
        self.tensors[name] = dense
        return [name, value.dtype.str, axes]

    def object(self, name: str, value: Any, path: str, depth: int) -> dict[str, Any]:
        if id(value) in self.shared:
            return {"@same": self.shared[id(value)]}
        parts = _parts(value).items()
        node = {name: {key: self.node(part, f"{path}.{key}", depth) for key, part in parts}}
        if is_dataclass(value) or isinstance(value, Posterior):
            return node
        # Two that draw from one generator must still do so.
        number = self.shared[id(value)] = len(self.shared)
        return {"@shared": [number, node]}


class _UnknownTag(ValueError):
    """A tag that stands for no known class."""


class _Decoder:
    """Turns JSON, in which arrays are in their places, into values.

    Without ``build`` rows that wait are checked, but not made: there may be a million.
    """

    def __init__(self, build: bool) -> None:
        self.build = build
        self.shared: dict[int, Any] = {}

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            return node
        ((tag, content),) = node.items()
        if tag in TAGGED:
            parts = {key: self.value(v) for key, v in content.items()}
            if tag == "Store":
                return Store.unpacked(**parts, build=self.build)
            return _whole(TAGGED[tag], parts)
        if tag[:1] != "@":
            raise _UnknownTag(
                f"holds a {_shown(tag)}, which no imported module defines; if it is a forgetting "
                "policy of your own, import its module before you load the file"
            )
        content = self.value(content)
        if tag == "@same":
            return self.shared[content]
        if tag == "@shared":
            self.shared[content[0]] = content[1]
            return content[1]
        return _TAGS[tag](content)


def _objects(content: Any) -> Array:
    shape, items = content
    array = np.empty(len(items), object)
    for i, item in enumerate(items):  # all at once, numpy would look into them
        array[i] = item
    return array.reshape(shape)


_TAGS: Final[dict[str, Callable[[Any], Any]]] = {
    "@tuple": tuple,
    "@dict": dict,
    "@int": lambda text: int(text, 16),
    "@float": lambda text: struct.unpack("<d", bytes.fromhex(text))[0],
    "@str": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    "@bytes": bytes.fromhex,
    "@text": lambda text: np.str_(text) if isinstance(text, str) else np.bytes_(text),
    "@scalar": lambda pair: np.frombuffer(bytes.fromhex(pair[1]), _dtype(pair[0]))[0],
    "@objects": _objects,
}


def _array(node: dict[str, Any], tensors: dict[str, Array]) -> Any:
    """The array that a JSON object stands for, or the object if it stands for none."""
    if "@array" not in node:
        return node
    name, dtype, axes = node["@array"]
    tensor = tensors.pop(name)  # each is used once
    if tensor.dtype.str != dtype:
        tensor = tensor.view(_dtype(dtype)).reshape(tensor.shape[:-1])
    return tensor.transpose(np.argsort(axes))


def _dtype(text: str) -> np.dtype[Any]:
    if text[1:2] not in _KINDS or np.dtype(text).str != text:
        raise ValueError(f"no arrays of dtype {text!r}")
    return np.dtype(text)


def _parts(value: Any) -> dict[str, Any]:
    """What an object of a registered class is made of."""
    if isinstance(value, Posterior):
        return {"stored": value.stored}
    if isinstance(value, Bank | MotionBank):
        # Raises if it was given away. What is in the part of cov that is not meant depends on
        # predictions and on memory that was used again; the bytes of a file must not.
        value.arrays.mirrored()
    if isinstance(value, Store | Aggregates):
        return value.packed()
    if isinstance(value, Base):
        return {"mean": value.mean, "cov": np.asfortranarray(np.tril(value.cov))}
    if isinstance(value, Generator):
        return {"bit_generator": value.bit_generator}
    if isinstance(value, RandomState):
        state = value.get_state(legacy=False)
        return {
            "bit_generator": value._bit_generator,
            "gauss": [state["has_gauss"], state["gauss"]],
        }
    if isinstance(value, BitGenerator):
        seeds = value.seed_seq  # what spawn goes by
        return {
            "state": value.state,
            "seeds": seeds.state if isinstance(seeds, SeedSequence) else None,
        }
    if isinstance(value, ExpertState):
        value = value.saved()
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
        return {n: getattr(value, n) for n in names if (type(value), n) not in _LEFT_OUT}
    return vars(value)


def _whole(cls: type, parts: dict[str, Any]) -> Any:
    """An object from its parts; the inverse of `_parts`."""
    made: Any
    if cls is Posterior:
        made = Posterior._of(**parts)
    elif cls is Aggregates:
        made = Aggregates.unpacked(**parts)
    elif cls is Generator:
        made = Generator(**parts)
    elif cls is RandomState:
        made = RandomState(parts["bit_generator"])
        state = made.get_state(legacy=False)
        state["has_gauss"], state["gauss"] = parts["gauss"]
        made.set_state(state)
    elif issubclass(cls, BitGenerator):
        seeds, state = parts["seeds"], parts["state"]
        # numpy trusts these: it would read beyond its buffers, or mix a pool without end
        pos, buffer_pos = state["state"].get("pos", 0), state.get("buffer_pos", 0)
        if not (0 <= pos <= 624 and 0 <= buffer_pos <= 4) or (seeds or {}).get("pool_size", 4) > 99:
            raise ValueError("the state of a random generator is invalid")
        if seeds is None:  # seeded as RandomState does: it has no sequence, then or now
            made = RandomState(0)._bit_generator if cls is MT19937 else cls(0)
        else:
            made = cls(SeedSequence(**seeds))
        made.state = state
    elif is_dataclass(cls):
        made = cls(**parts)
    else:
        made = cls()  # so that an attribute that is newer than the file has its default
        vars(made).update(parts)
    if cls in CHECKS:
        CHECKS[cls](made)
    return made


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _shown(value: Any) -> str:
    try:
        return short(value)
    except ValueError:  # an integer of more than 4300 digits
        return "..."


def _file(path: FilePath) -> FilePath:
    """The path, unless something that is not a file is there: a folder, a device, a pipe."""
    if os.path.exists(path) and not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "not a regular file"
        raise CheckpointError(f"{path} is {what}; pass the path of a checkpoint file")
    return path
