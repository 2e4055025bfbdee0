"""What to do with data that no source reads: the nearest way for each kind, in a sentence."""

from __future__ import annotations

from pathlib import Path

_AS_DATASET = (
    "write a torch Dataset that loads one file for each sample, and pass it to ChunkedDataLoader"
)
_HDF5 = "copy the arrays you need: np.save('x.npy', h5py.File({path!r})['name'][...])"
_JSON = "read it as a table: open_source(pyarrow.json.read_json({path!r}))"
_ZIP = "unpack it, and open what is inside"
_PICKLED = "load it, and pass the tensors: open_source(torch.load({path!r}, weights_only=True))"

BY_SUFFIX = {
    ".bin": "say what its bytes are: open_source(np.memmap({path!r}, dtype, 'r', shape=shape))",
    ".dat": "say what its bytes are: open_source(np.memmap({path!r}, dtype, 'r', shape=shape))",
    ".raw": "say what its bytes are: open_source(np.memmap({path!r}, dtype, 'r', shape=shape))",
    ".csv": "read it as a table: open_source(pyarrow.csv.read_csv({path!r}))",
    ".tsv": "read it as a table: pyarrow.csv.read_csv, with delimiter='\\t' in its parse_options",
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".h5ad": _HDF5,
    ".mat": "load it with scipy.io.loadmat, and pass the arrays to open_source as a dict",
    ".nc": "write it as Zarr, with xarray.open_dataset({path!r}).to_zarr('data.zarr')",
    ".npz": "load it, and pass the arrays: open_source(dict(np.load({path!r})))",
    ".json": _JSON,
    ".jsonl": _JSON,
    ".pt": _PICKLED,
    ".pth": _PICKLED,
    ".tar": f"unpack it; then {_AS_DATASET}",
    ".tgz": f"unpack it; then {_AS_DATASET}",
    ".zip": _ZIP,
    ".gz": _ZIP,
    ".txt": _AS_DATASET,
}
ACCEPTED = (
    "open_source reads .zarr, .npy, .parquet and .arrow paths, URLs of Zarr stores, Hugging Face "
    "datasets, pyarrow tables, arrays, tensors, and dicts and lists of these"
)


def advice_for_file(path: Path) -> str:
    """What to do with a file that no source reads.

    >>> advice_for_file(Path("words.csv"))
    "read it as a table: open_source(pyarrow.csv.read_csv('words.csv'))"
    """
    return BY_SUFFIX.get(path.suffix.lower(), ACCEPTED).format(path=str(path))


def advice_for_folder(path: Path) -> str:
    """What to do with a folder that no source reads, by the first files in it."""
    suffixes = set()
    for number, entry in enumerate(path.iterdir()):
        suffixes.add("/" if entry.is_dir() else entry.suffix.lower())
        if number == 1000:  # enough to know what it is
            break
    if not suffixes:
        return "it is empty"
    if suffixes <= {".npy"}:
        return f"pass its files as a list: open_source(sorted(Path({str(path)!r}).glob('*.npy')))"
    if "/" in suffixes and any((entry / "zarr.json").exists() for entry in path.iterdir()):
        return "open one of the Zarr stores in it"
    known = [suffix for suffix in sorted(suffixes) if suffix in BY_SUFFIX]
    if len(suffixes) == 1 and known:
        return f"for each of its {known[0]} files: {BY_SUFFIX[known[0]].format(path='...')}"
    return _AS_DATASET


def advice_for_object(value: object) -> str:
    """What to do with an object that no source reads."""
    package = type(value).__module__.partition(".")[0]
    if package == "pandas":
        return "convert it with pyarrow.Table.from_pandas"
    if package in ("xarray", "h5py", "zarr"):
        return "pass the path of its store"
    if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_plain(value):
        return "a dataset with __getitem__ and __len__ goes to ChunkedDataLoader"
    if hasattr(value, "__iter__") and not _is_plain(value):
        return "samples that can only be iterated over need a torch DataLoader"
    return ACCEPTED


def _is_plain(value: object) -> bool:
    return isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range)
