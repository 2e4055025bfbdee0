"""`open_source`: find the source for a path, a URL, or an object; and sources made of several."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.arguments import flag, mapping, shown, with_article
from penstock.errors import SourceError
from penstock.extras import load_extensions
from penstock.registry import close_name, did_you_mean
from penstock.sources.array_source import StoreSource, checked_along
from penstock.sources.base import BaseSource, ComposedSource, composed, layout_of
from penstock.sources.combine import Concatenated, Zipped, checked_rate
from penstock.sources.contract import Source, SourceLike, checked_names
from penstock.sources.memory import MemorySource, is_tensor
from penstock.sources.storage import (
    DirectoryStore,
    StoredFile,
    is_pattern,
    is_url,
    package_of,
    reading,
    redacted,
)

Given: TypeAlias = Mapping[str, Any]  # the arguments of `open_source` that were passed


def open_source(
    where: SourceLike,
    *,
    fields: Sequence[str] | None = None,
    along: int | str | None = None,
    decode: bool = True,
    dtype: npt.DTypeLike | None = None,
    **options: Any,
) -> BaseSource:
    """Return the source for a path, a URL, arrays, tensors, a dataset, or several of these.

    These are opened:

    - arrays of numpy, tensors, and dicts of them by field name
    - ``.zarr`` directories (version 2 and 3, OME-Zarr, groups that xarray writes), also in ``.zip``
    - ``.h5``, ``.hdf5``, ``.nc``, ``.nc4``, ``.cdf``: HDF5 and netCDF
    - ``.npy``; ``.bin`` with ``dtype=``, such as files of tokens
    - ``.h5ad`` and ``.zarr`` of AnnData
    - ``.parquet``, ``.pq``, ``.arrow``, ``.feather``, ``.ipc``, and folders of Parquet files
    - ``.jsonl``, ``.ndjson``; ``.tar`` of WebDataset
    - a folder or a pattern (``"clips/*.wav"``) of files that are one sample each: ``.npy``, images,
      sound; if a pattern matches other files, their sources are concatenated
    - ``s3://``, ``gs://``, ``az://`` and ``http(s)://``: Zarr, AnnData, ``.npy`` and Parquet
    - open objects: of zarr, icechunk, h5py, xarray, tensorstore, pyarrow, Hugging Face datasets,
      and anything with ``shape``, ``dtype`` and slicing
    - recordings, and other data for which an installed package has a source as an entry point

    A list is concatenated, a mapping is zipped, and a source is returned as it is. A source of a
    class of your own gets the verbs (`select`, `windows`, ...) that Penstock's sources have.

    Args:
        where: What holds the samples.
        fields: Names of the fields to read: arrays of a store by their path, columns of a table
            or of a recording, keys of a dict. By default all of them; of arrays with dimension
            names, those that are not coordinates and have the axis of samples.
        along: The axis of samples, by number or by dimension name; the first one by default.
            Only arrays and stores of them can have another. ``axis`` is an alias.
        decode: Apply the attributes ``scale_factor``, ``add_offset``, ``_FillValue``,
            ``missing_value`` and ``_Unsigned`` as xarray does: packed integers arrive as floats,
            missing values as NaN. False reads the stored values.
        dtype: The dtype of a file that does not store it, such as tokens in ``.bin``.
        options: Options of the source that is opened: ``missing="error"`` for Zarr,
            ``columns=`` for a table, ``access_key_id=`` for object storage, and so on.

    Raises:
        SourceError: No source reads this. The message says what to do instead.

    >>> len(open_source(np.zeros((5, 2))))
    5
    >>> len(open_source([np.zeros((5, 2)), np.ones((3, 2))]))
    8
    >>> open_source("nowhere.npy")
    Traceback (most recent call last):
    ...
    penstock.errors.SourceError: there is nothing at nowhere.npy
    """
    axis = checked_along(options.pop("axis", None), along)
    named = {"fields": checked_names("fields", fields), "along": axis or None, "dtype": dtype}
    given = {name: value for name, value in named.items() if value is not None}
    found = _open(where, {**given, "decode": flag("decode", decode), **options})
    return found if isinstance(found, BaseSource) else composed(found)


def concatenate(sources: Sequence[SourceLike]) -> ComposedSource:
    """Return the samples of several sources with the same fields, one source after the other.

    There is a seam between neighbours: no window crosses it. Images of different shapes have the
    same fields as patches: ``concatenate([image.patches((256, 256)) for image in images])``.

    Args:
        sources: A list of at least one source, or of what `open_source` takes: arrays, dicts of
            arrays, paths.

    >>> both = concatenate([np.arange(3), np.arange(5)])
    >>> out = {"": np.zeros(4, np.int64)}
    >>> both.read(2, 6, out)
    >>> len(both), both.seams, out[""].tolist()
    (8, [3], [2, 0, 1, 2])
    """
    if not isinstance(sources, list | tuple) or not sources:
        raise SourceError(f"sources must be a list of at least one source, got {sources!r}")
    return ComposedSource(Concatenated([layout_of(open_source(each)) for each in sources]))


def zip_sources(
    sources: Mapping[str, SourceLike], rates: Mapping[str, float] | None = None
) -> ComposedSource:
    """Return the fields of several sources, side by side.

    Args:
        sources: Sources, or what `open_source` takes, by name. The name becomes that of a
            source's unnamed field; named fields keep their names.
        rates: Rows of a source per sample, by name; 1 by default. With 2, a sample has two rows;
            with 0.5, two samples share a row, so that ``windows(8)`` has 4 rows of it; with 0,
            all samples share its only row.

    >>> pairs = zip_sources({"x": np.zeros((4, 2)), "video": np.ones(2)}, rates={"video": 0.5})
    >>> list(pairs.fields), len(pairs), pairs.windows(2).fields["video"].shape
    (['x', 'video'], 4, (1,))
    """
    named = mapping("sources", sources, error=SourceError)
    if not named:
        raise SourceError("sources must be a dict of at least one source by name, got {}")
    given = mapping("rates", rates or {}, error=SourceError)
    for name in given:
        if name not in named:
            raise SourceError(f"rates: there is no source {name!r}{did_you_mean(name, named)}")
    each = {name: checked_rate(name, given.get(name, 1)) for name in named}
    layouts = {name: layout_of(open_source(source)) for name, source in named.items()}
    return ComposedSource(Zipped(layouts, each))


# -- what opens which data


def imported(name: str) -> Callable[..., Any]:
    """Return ``"module:function"`` of this package, imported when it is called."""
    module, _, function = name.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"penstock.sources.{module}"), function)(*args, **kwargs)

    return call


def arrays(find: str) -> Callable[..., Source]:
    """Return a function that opens the arrays that ``"module:function"`` finds in a store."""

    def call(where: Any, fields: Sequence[str] | None = None, **options: Any) -> Source:
        return StoreSource(*imported(find)(where, fields), fields=fields, **options)

    return call


@dataclass(frozen=True, slots=True)
class Opener:
    """A function that opens one kind of data, and the arguments of `open_source` that it takes.

    Attributes:
        make: Called with the data, those arguments, and the options that were passed.
        takes: Some of "fields", "along", "decode" and "dtype"; "columns" is the name of "fields"
            for tables.
    """

    make: Callable[..., Source]
    takes: tuple[str, ...] = ()

    def __call__(self, where: Any, given: Given) -> Source:
        """Return the source; refuse arguments and options that it does not take."""
        arguments = dict(given)
        if "columns" in self.takes and "fields" in arguments:
            if "columns" in arguments:
                raise SourceError("columns is given twice: leave out fields=, or columns=")
            arguments["columns"] = arguments.pop("fields")
        if "decode" not in self.takes:
            del arguments["decode"]
        what = with_article(type(where).__name__)
        if isinstance(where, Path | StoredFile):
            what = redacted(str(where) if isinstance(where, Path) else where.name)
        for name in _REFUSALS:
            if name in arguments and name not in self.takes:
                raise SourceError(f"{what} {_REFUSALS[name].format(arguments[name])}")
        try:
            return self.make(where, **arguments)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise SourceError(f"{what} cannot be opened with these options: {error}") from error


_REFUSALS = {
    "fields": "has no named fields to choose from: leave out fields=",
    "along": (
        "has samples along its first axis, got along={!r}: only stores of arrays can be read "
        "along another axis"
    ),
    "dtype": "stores its dtype: leave out dtype=",
}
kind_of_store = imported("zarr.source:kind_of_store")
ARRAYS, COLUMNS = ("fields", "along", "decode"), ("columns",)
# options of a source at a URL; all others are for object storage
OWN_OPTIONS = (*ARRAYS, "dtype", "direct", "missing", "columns", "dense")
IN_MEMORY = Opener(MemorySource, ("along",))
TABLE = Opener(imported("arrow:ArrowSource"), COLUMNS)
ANNDATA = Opener(imported("anndata:AnnDataSource"), COLUMNS)
FOLDER = Opener(imported("sample_files:FolderSource"))
ZARR = Opener(imported("zarr:ZarrSource"), ARRAYS)
HDF5 = Opener(arrays("hdf5:arrays_of_hdf5"), ARRAYS)
SLICEABLE = Opener(arrays("sliceable:arrays_of_object"), ARRAYS)

# each kind of data is one line in one of these
FILES: dict[str, Opener] = {
    ".npy": Opener(imported("npy:NpySource"), ("along",)),
    ".bin": Opener(imported("npy:BinarySource"), ("dtype",)),
    ".h5ad": ANNDATA,
    **dict.fromkeys((".jsonl", ".ndjson"), Opener(imported("jsonl:JsonLinesSource"), COLUMNS)),
    ".tar": Opener(imported("sample_files:TarSource"), COLUMNS),
    **dict.fromkeys((".h5", ".hdf5", ".nc", ".nc4", ".cdf"), HDF5),
    ".zip": ZARR,
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc"), TABLE),
}
STORES = {"zarr": ZARR, "anndata": ANNDATA}
FOLDERS: list[tuple[Callable[[Path], bool], Opener]] = [
    (lambda path: any(path.rglob("*.parquet")), TABLE),
    (imported("sample_files:has_samples"), FOLDER),
]
OBJECTS: dict[str, Opener] = {  # by the package that defines their class
    **dict.fromkeys(("datasets", "pyarrow"), TABLE),
    "h5py": HDF5,
    **dict.fromkeys(("zarr", "icechunk"), ZARR),
    "xarray": Opener(arrays("sliceable:arrays_of_xarray"), ARRAYS),
    "tensorstore": Opener(arrays("sliceable:arrays_of_tensorstore"), ARRAYS),
}


def _open(where: Any, given: Given) -> Source:
    if isinstance(where, Source):
        passed = [name for name in given if name != "decode"]
        if passed:
            raise SourceError(
                f"a source that is open already takes no options, got {', '.join(passed)}: pass "
                "them where it is opened"
            )
        return where
    if isinstance(where, str | os.PathLike):
        return _open_path(os.fspath(where), given)
    if _in_memory(where):
        return IN_MEMORY(where, given)
    if package_of(where) in OBJECTS:
        return OBJECTS[package_of(where)](where, given)
    if all(hasattr(where, name) for name in ("shape", "dtype", "__getitem__")):
        return SLICEABLE(where, given)
    if isinstance(where, Mapping) and where:
        return _open_mapping(where, given)
    is_list = isinstance(where, list | tuple) and len(where) > 0
    if is_list and not isinstance(where[0], int | float | complex | np.generic):
        return concatenate([_open(each, given) for each in where])
    raise SourceError(f"cannot read samples from {redacted(shown(where))}: {_object_advice(where)}")


def _in_memory(where: Any) -> bool:
    return isinstance(where, np.ndarray) or is_tensor(where)


def _open_mapping(where: Mapping[str, Any], given: Given) -> Source:
    mapping("a dict of fields", where, error=SourceError)
    inner = {name: value for name, value in given.items() if name != "fields"}
    chosen = {}
    for name in given.get("fields", where):
        if name not in where:
            raise SourceError(f"no field {name!r} in the dict{did_you_mean(name, where)}")
        chosen[name] = where[name]
    if all(map(_in_memory, chosen.values())):
        return IN_MEMORY(chosen, inner)
    return zip_sources({name: _open(each, inner) for name, each in chosen.items()})


def _near(path: Path) -> str:
    """Return the end of a message about a path that does not exist: a similar name beside it."""
    try:
        beside = [each.name for each in path.parent.iterdir()]
    except OSError:
        return ": its folder cannot be read"  # not named: in a URL, it may hold a password
    near = close_name(path.name, beside)
    return "" if near is None else f": did you mean {str(path.with_name(near))!r}?"


def _open_path(where: str | bytes, given: Given) -> Source:
    if isinstance(where, bytes) or not where or "\0" in where:
        raise SourceError(f"a path must be text, got {where!r}")
    if is_url(where):
        return _open_url(where, given)
    path, name = Path(where.removeprefix("file://")), redacted(where)
    with reading(name):
        if is_pattern(where) and not path.exists():
            return _open_pattern(where, given)
        opener = _opener_of(path)
        if opener is None and not path.exists():
            raise SourceError(f"there is nothing at {name}{_near(path)}")
        if opener is None and path.is_dir():
            raise SourceError(f"no source reads the folder {name}: {_folder_advice(path)}")
    if opener is None:
        advice = ADVICE.get(path.suffix.lower(), ACCEPTED).format(path=str(path))
        raise SourceError(f"no source reads the file {name}: {advice}")
    return opener(path, given)


def _open_url(url: str, given: Given) -> Source:
    own = {name: each for name, each in given.items() if name in OWN_OPTIONS}
    rest = {name: each for name, each in given.items() if name not in own}
    found = imported("remote:open_remote")(url, **rest)
    if isinstance(found, StoredFile):
        return FILES[Path(found.name).suffix.lower()](found, own)
    if Path(url.partition("?")[0]).suffix.lower() in FILES:
        raise SourceError(
            f"{redacted(url)} is a file that can only be read from a local disk: download it, or "
            "write it as Zarr, .npy or Parquet"
        )
    return STORES[kind_of_store(found) or "zarr"](found, own)


def _open_pattern(where: str, given: Given) -> Source:
    """Return the files that a pattern matches: one sample each, or sources one after the other."""
    found = sorted(glob.glob(where, recursive=True))  # noqa: PTH207 - absolute patterns too
    if not found:
        raise SourceError(f"no file matches {redacted(where)}")
    if imported("sample_files:are_samples")(found):
        return FOLDER(where, given)
    return concatenate([_open_path(path, given) for path in found])


def _opener_of(path: Path) -> Opener | None:
    """Return what opens the data at ``path``, or None if nothing does."""
    if path.is_file():
        return FILES.get(path.suffix.lower())
    kind = kind_of_store(DirectoryStore(path)) if path.is_dir() else None
    if kind is not None:  # a Zarr store is never read by an extension
        return STORES[kind]
    for extension in load_extensions("penstock.sources").values():
        if extension.accepts(path):
            return Opener(extension, COLUMNS)
    return next((opener for has, opener in FOLDERS if path.is_dir() and has(path)), None)


# -- advice about data that no source reads

_DATASET = (
    "write a torch Dataset that loads one file for each sample, and pass it to ChunkedDataLoader"
)
ADVICE = {
    **dict.fromkeys(
        (".dat", ".raw"),
        "pass its dtype and shape: open_source(np.memmap({path!r}, dtype, 'r', shape=shape))",
    ),
    ".json": "read it as a table: open_source(pyarrow.json.read_json({path!r}))",
    **dict.fromkeys(
        (".pt", ".pth"),
        "load it, and pass the tensors: open_source(torch.load({path!r}, weights_only=True))",
    ),
    ".tgz": "decompress it: a .tar without compression is read in place",
    ".gz": "unpack it, and open what is inside",
    ".csv": "read it as a table: open_source(pyarrow.csv.read_csv({path!r}))",
    ".tsv": "read it as a table: pyarrow.csv.read_csv, with delimiter='\\t' in its parse_options",
    ".mat": "load it with scipy.io.loadmat, and pass the arrays to open_source as a dict",
    ".npz": "load it, and pass the arrays: open_source(dict(np.load({path!r})))",
    ".txt": _DATASET,
}
ACCEPTED = "help(penstock.open_source) lists what open_source reads"


def _folder_advice(path: Path) -> str:
    entries = list(islice(path.iterdir(), 1000))  # enough to know what it is
    if not entries:
        return "it is empty"
    if any((entry / "zarr.json").exists() for entry in entries):
        return "open one of the Zarr stores in it"
    advice = {ADVICE.get(entry.suffix.lower(), _DATASET).format(path="...") for entry in entries}
    return f"for each of its files: {advice.pop()}" if len(advice) == 1 else _DATASET


def _object_advice(value: object) -> str:
    if package_of(value) == "pandas":
        return "convert it with pyarrow.Table.from_pandas"
    if not isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
        if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
            return "pass a dataset with __getitem__ and __len__ to ChunkedDataLoader"
        if hasattr(value, "__iter__"):
            return "samples that can only be iterated over need a torch DataLoader"
    return ACCEPTED
