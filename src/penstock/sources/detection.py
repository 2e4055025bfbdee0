"""`open_source`: find the source for a path, a URL, or an object; and sources made of several."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import flag
from penstock.errors import SourceError
from penstock.extras import load_extensions
from penstock.registry import did_you_mean
from penstock.sources.array_source import StoreSource, checked_along
from penstock.sources.base import (
    BaseSource,
    ComposedSource,
    Source,
    checked_names,
    layout_of,
    with_verbs,
)
from penstock.sources.combine import Concatenated, Zipped, checked_rate
from penstock.sources.contract import SourceLike
from penstock.sources.memory import MemorySource, is_tensor
from penstock.sources.storage import (
    DirectoryStore,
    StoredFile,
    is_pattern,
    is_url,
    package_of,
    redacted,
)


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
        dtype: The dtype of a file that does not say it, such as tokens in ``.bin``.
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
    names = checked_names("fields", fields)
    return with_verbs(_open(where, Request(names, axis, flag("decode", decode), dtype, options)))


def concatenate(sources: Sequence[SourceLike]) -> ComposedSource:
    """Return the samples of several sources with the same fields, one source after the other.

    There is a seam between each two: no window crosses it. Images of different shapes have the
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
        rates: Rows of a source for one sample, by name; 1 where nothing is given. 2 gives two
            rows a sample; 0.5 gives one row to two samples, so that ``windows(8)`` has 4 rows of
            it; 0 gives its only row to every sample.

    >>> pairs = zip_sources({"x": np.zeros((4, 2)), "video": np.ones(2)}, rates={"video": 0.5})
    >>> list(pairs.fields), len(pairs), pairs.windows(2).fields["video"].shape
    (['x', 'video'], 4, (1,))
    """
    if not isinstance(sources, Mapping) or not sources:
        raise SourceError(f"sources must be a dict of sources by name, got {sources!r}")
    wrong = [name for name in sources if not isinstance(name, str)]
    if wrong:
        raise SourceError(f"names of sources must be strings, got {wrong[0]!r}")
    if rates is not None and not isinstance(rates, Mapping):
        raise SourceError(f"rates must be a dict of numbers by source, got {rates!r}")
    for name in rates or {}:
        if name not in sources:
            raise SourceError(f"rates: there is no source {name!r}{did_you_mean(name, sources)}")
    each = {name: checked_rate(name, (rates or {}).get(name, 1)) for name in sources}
    layouts = {name: layout_of(open_source(source)) for name, source in sources.items()}
    return ComposedSource(Zipped(layouts, each))


# -- what opens which data


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of one call of `open_source`."""

    fields: list[str] | None
    along: int | str | None
    decode: bool
    dtype: npt.DTypeLike | None
    options: Mapping[str, Any]

    def given(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults, without ``decode``."""
        arguments = {"fields": self.fields, "along": self.along, "dtype": self.dtype}
        passed = {name: value for name, value in arguments.items() if value is not None}
        return {name: value for name, value in passed.items() if (name, value) != ("along", 0)}


def imported(name: str) -> Callable[..., Any]:
    """Return a function that imports ``"module:function"`` when it is called, and calls that."""
    module, _, function = name.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), function)(*args, **kwargs)

    return call


def arrays(find: str) -> Callable[..., Source]:
    """Return a function that opens the arrays that ``"module:function"`` finds in a store."""

    def call(where: Any, fields: Sequence[str] | None = None, **options: Any) -> Source:
        return StoreSource(*imported(find)(where, fields), fields=fields, **options)

    return call


@dataclass(frozen=True, slots=True)
class Opener:
    """A function that opens one kind of data, and which arguments of `open_source` it takes.

    Attributes:
        make: Called with the data, those arguments, and the options that were passed.
        takes: Of "fields", "along", "decode" and "dtype"; "columns" is "fields" by the name that
            tables have for it.
    """

    make: Callable[..., Source]
    takes: tuple[str, ...] = ()

    def __call__(self, where: Any, request: Request) -> Source:
        """Return the source; refuse arguments and options that it does not take."""
        shown = f"a {type(where).__name__}"
        if isinstance(where, Path | StoredFile):
            shown = redacted(str(where) if isinstance(where, Path) else where.name)
        arguments = request.given()
        if "columns" in self.takes and "fields" in arguments:
            arguments["columns"] = arguments.pop("fields")
        for name in arguments:
            if name not in self.takes:
                raise SourceError(f"{shown} {_REFUSALS[name].format(request.along)}")
        if "decode" in self.takes:
            arguments["decode"] = request.decode
        twice = sorted(set(request.options) & set(arguments))
        if twice:
            raise SourceError(f"{twice[0]} is given twice: leave out fields=, or {twice[0]}=")
        try:
            return self.make(where, **arguments, **request.options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise SourceError(f"{shown} cannot be opened with these options: {error}") from error


def is_sliceable(where: Any) -> bool:
    """Return whether an object has shape, dtype and slicing.

    >>> is_sliceable(np.zeros((3, 2))), is_sliceable([1, 2])
    (True, False)
    """
    return all(hasattr(where, name) for name in ("shape", "dtype", "__getitem__"))


_REFUSALS = {
    "fields": "has no named fields to choose from: leave out fields=",
    "along": (
        "has samples along its first axis, got along={!r}: only stores of arrays can be read "
        "along another axis"
    ),
    "dtype": "says its dtype itself: leave out dtype=",
}
is_anndata = imported("penstock.sources.zarr.hierarchy:is_anndata")
is_zarr = imported("penstock.sources.zarr.hierarchy:is_zarr")
ARRAYS = ("fields", "along", "decode")
ZARR_OPTIONS = ("direct", "missing", "columns", "dense")  # of a URL: others are for obstore
COLUMNS = ("columns",)
IN_MEMORY = Opener(MemorySource, ("along",))
TABLE = Opener(imported("penstock.sources.arrow:ArrowSource"), COLUMNS)
ANNDATA = Opener(imported("penstock.sources.anndata:AnnDataSource"), COLUMNS)
JSON_LINES = Opener(imported("penstock.sources.jsonl:JsonLinesSource"), COLUMNS)
FOLDER = Opener(imported("penstock.sources.sample_files:FolderSource"))
ZARR = Opener(imported("penstock.sources.zarr:ZarrSource"), ARRAYS)
HDF5 = Opener(arrays("penstock.sources.hdf5:arrays_of_hdf5"), ARRAYS)
XARRAY = Opener(arrays("penstock.sources.sliceable:arrays_of_xarray"), ARRAYS)
TENSORSTORE = Opener(arrays("penstock.sources.sliceable:arrays_of_tensorstore"), ARRAYS)
SLICEABLE = Opener(arrays("penstock.sources.sliceable:arrays_of_object"), ARRAYS)

# each kind of data is one line in one of these; the first match opens it
FILES: dict[str, Opener] = {
    ".npy": Opener(imported("penstock.sources.npy:NpySource")),
    ".bin": Opener(imported("penstock.sources.npy:BinarySource"), ("dtype",)),
    ".h5ad": ANNDATA,
    **dict.fromkeys((".jsonl", ".ndjson"), JSON_LINES),
    ".tar": Opener(imported("penstock.sources.sample_files:TarSource"), COLUMNS),
    **dict.fromkeys((".h5", ".hdf5", ".nc", ".nc4", ".cdf"), HDF5),
    ".zip": ZARR,
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc"), TABLE),
}
FOLDERS: list[tuple[Callable[[Path], bool], Opener]] = [
    (lambda path: is_anndata(DirectoryStore(path)), ANNDATA),
    (lambda path: is_zarr(DirectoryStore(path)), ZARR),
    (lambda path: any(path.rglob("*.parquet")), TABLE),
    (imported("penstock.sources.sample_files:has_samples"), FOLDER),
]
OBJECTS: dict[str, Opener] = {  # by the package that defines their class
    **dict.fromkeys(("datasets", "pyarrow"), TABLE),
    "h5py": HDF5,
    **dict.fromkeys(("zarr", "icechunk"), ZARR),
    "xarray": XARRAY,
    "tensorstore": TENSORSTORE,
}


def _open(where: Any, request: Request) -> Source:
    if isinstance(where, Source):
        given = [*request.given(), *request.options]
        if given:
            raise SourceError(
                f"a source that is open already takes no options, got {', '.join(given)}: pass "
                "them where it is opened"
            )
        return where
    if isinstance(where, str | os.PathLike):
        return _open_path(os.fspath(where), request)
    if _in_memory(where):
        return IN_MEMORY(where, request)
    if package_of(where) in OBJECTS:
        return OBJECTS[package_of(where)](where, request)
    if is_sliceable(where):
        return SLICEABLE(where, request)
    if isinstance(where, Mapping) and where:
        return _open_mapping(where, request)
    is_list = isinstance(where, list | tuple) and len(where) > 0
    if is_list and not isinstance(where[0], int | float | complex | np.generic):
        return concatenate([_open(each, request) for each in where])
    raise SourceError(f"cannot read samples from {_shown(where)}: {_advice_for_object(where)}")


def _in_memory(where: Any) -> bool:
    return isinstance(where, np.ndarray) or is_tensor(where)


def _open_mapping(where: Mapping[str, Any], request: Request) -> Source:
    wrong = [name for name in where if not isinstance(name, str)]
    if wrong:
        raise SourceError(f"field names must be strings, got {wrong[0]!r}")
    for name in request.fields or ():
        if name not in where:
            raise SourceError(f"no field {name!r} in the dict{did_you_mean(name, where)}")
    chosen = {name: where[name] for name in request.fields or where}
    inner = replace(request, fields=None)
    if all(map(_in_memory, chosen.values())):
        return IN_MEMORY(chosen, inner)
    return zip_sources({name: _open(each, inner) for name, each in chosen.items()})


def _open_path(where: str | bytes, request: Request) -> Source:
    if isinstance(where, bytes) or not where or "\0" in where:
        raise SourceError(f"a path must be text, got {where!r}")
    if is_url(where):
        return _open_url(where, request)
    path, shown = Path(where.removeprefix("file://")), redacted(where)
    if is_pattern(where) and not path.exists():
        return _open_pattern(where, request)
    try:
        opener = _opener_of(path)
        if opener is None and not path.exists():
            raise SourceError(f"there is nothing at {shown}")
        if opener is None and path.is_dir():
            raise SourceError(f"no source reads the folder {shown}: {_advice_for_folder(path)}")
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"cannot read {shown}: {error.strerror}") from error
    if opener is None:
        raise SourceError(f"no source reads the file {shown}: {_advice_for_file(path)}")
    return opener(path, request)


def _open_url(url: str, request: Request) -> Source:
    own = {name: each for name, each in request.options.items() if name in ZARR_OPTIONS}
    rest = {name: each for name, each in request.options.items() if name not in own}
    found = imported("penstock.sources.remote:open_remote")(url, **rest)
    request = replace(request, options=own)
    if isinstance(found, StoredFile):
        return FILES[Path(found.name).suffix.lower()](found, request)
    return (ANNDATA if is_anndata(found) else ZARR)(found, request)


def _open_pattern(where: str, request: Request) -> Source:
    """Return the files that a pattern matches: one sample each, or sources one after the other."""
    found = sorted(glob.glob(where, recursive=True))  # noqa: PTH207 - absolute patterns too
    if not found:
        raise SourceError(f"no file matches {redacted(where)}")
    if imported("penstock.sources.sample_files:are_samples")(found):
        return FOLDER(where, request)
    return concatenate([_open_path(path, request) for path in found])


def _opener_of(path: Path) -> Opener | None:
    """Return what opens the data at ``path``, or None if nothing does."""
    if path.is_file():
        return FILES.get(path.suffix.lower())
    folders = FOLDERS if path.is_dir() else []
    for accepts, opener in folders[:2]:  # before the extensions: a Zarr store is never theirs
        if accepts(path):
            return opener
    for extension in load_extensions("penstock.sources").values():
        if extension.accepts(path):
            return Opener(extension, COLUMNS)
    return next((opener for accepts, opener in folders[2:] if accepts(path)), None)


def _shown(where: object) -> str:
    text = redacted(" ".join(repr(where).split()))
    return f"{type(where).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# -- advice about data that no source reads

_DATASET = (
    "write a torch Dataset that loads one file for each sample, and pass it to ChunkedDataLoader"
)
_BINARY = "pass its dtype and shape: open_source(np.memmap({path!r}, dtype, 'r', shape=shape))"
_JSON = "read it as a table: open_source(pyarrow.json.read_json({path!r}))"
_PICKLED = "load it, and pass the tensors: open_source(torch.load({path!r}, weights_only=True))"

ADVICE = {
    **dict.fromkeys((".dat", ".raw"), _BINARY),
    ".json": _JSON,
    **dict.fromkeys((".pt", ".pth"), _PICKLED),
    ".tgz": "decompress it: a .tar without compression is read in place",
    ".gz": "unpack it, and open what is inside",
    ".csv": "read it as a table: open_source(pyarrow.csv.read_csv({path!r}))",
    ".tsv": "read it as a table: pyarrow.csv.read_csv, with delimiter='\\t' in its parse_options",
    ".mat": "load it with scipy.io.loadmat, and pass the arrays to open_source as a dict",
    ".npz": "load it, and pass the arrays: open_source(dict(np.load({path!r})))",
    ".txt": _DATASET,
}
ACCEPTED = (
    "open_source reads .zarr, .zip, .h5, .h5ad, .nc, .npy, .bin, .parquet, .arrow, .jsonl and .tar "
    "paths, folders and patterns of samples, URLs, objects of zarr, h5py, xarray and tensorstore, "
    "Hugging Face datasets, pyarrow tables, arrays, tensors, and dicts and lists of these"
)


def _advice_for_file(path: Path) -> str:
    return ADVICE.get(path.suffix.lower(), ACCEPTED).format(path=str(path))


def _advice_for_folder(path: Path) -> str:
    entries = islice(path.iterdir(), 1000)  # enough to know what it is
    suffixes = {"/" if entry.is_dir() else entry.suffix.lower() for entry in entries}
    if not suffixes:
        return "it is empty"
    if "/" in suffixes and any((entry / "zarr.json").exists() for entry in path.iterdir()):
        return "open one of the Zarr stores in it"
    suffix = min(suffixes)
    if len(suffixes) == 1 and suffix in ADVICE:
        return f"for each of its {suffix} files: {ADVICE[suffix].format(path='...')}"
    return _DATASET


def _advice_for_object(value: object) -> str:
    if package_of(value) == "pandas":
        return "convert it with pyarrow.Table.from_pandas"
    if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
        return ACCEPTED
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return "pass a dataset with __getitem__ and __len__ to ChunkedDataLoader"
    if hasattr(value, "__iter__"):
        return "samples that can only be iterated over need a torch DataLoader"
    return ACCEPTED
