"""Data sets in the formats of the `datasets` library: saved folders, Parquet files, hub names.

The library is imported when one of these is asked for. Only a name goes to the network; it is read
as a stream, so that no more is fetched than is used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.document import Document, Draw, long_last, record_document
from quantkit.errors import DataError, UsageError

_COLUMNS = ("messages", "text")
_SPLITS = {
    "calibration": ("train", "validation", "test"),
    "evaluation": ("test", "validation", "train"),
}
# How many records of a stream are shuffled at a time.
_SHUFFLE_RECORDS = 1000
_CONNECT_S = 5.0
_LOCAL_HINT = "give a local text, JSONL or Parquet file, a folder, or `builtin` instead"


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def saved_documents(path: Path, split: str, draw: Draw) -> Iterator[Document]:
    """Records of a data set saved to disk, in a seeded order."""
    import datasets  # type: ignore[import-untyped]

    try:
        data: Any = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a readable saved data set ({_line(error)})") from error
    if isinstance(data, Mapping):
        data = data[_pick_split(list(data), split)]
    columns = _known_columns(data.column_names, str(path))
    data = data.select_columns(columns)
    records = (
        record_document(data[index], f"{path}, record {index + 1}")
        for index in draw.order(len(data))
    )
    yield from long_last(records, draw.part_chars)


def parquet_documents(paths: Sequence[Path], draw: Draw) -> Iterator[Document]:
    """Records of Parquet files, row groups and the rows within each in a seeded order."""
    yield from long_last(_parquet_records(paths, draw), draw.part_chars)


def _parquet_records(paths: Sequence[Path], draw: Draw) -> Iterator[Document]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    groups: list[tuple[Path, int, list[str]]] = []
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                columns = _known_columns(file.schema_arrow.names, str(path))
                groups.extend((path, group, columns) for group in range(file.num_row_groups))
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path}: not a readable Parquet file ({_line(error)})") from error
    for index in draw.order(len(groups)):
        path, group, columns = groups[index]
        with parquet.ParquetFile(path) as file:
            rows = file.read_row_group(group, columns=columns).to_pylist()
        for row in draw.order(len(rows)):
            where = f"{path}, row group {group + 1}, row {row + 1}"
            yield record_document(rows[row], where)


def named_documents(name: str, split: str, draw: Draw) -> Iterator[Document]:
    """Records of NAME[:CONFIG[:SPLIT]] in a seeded order, read through the `datasets` library."""
    yield from long_last(_named_records(name, split, draw), draw.part_chars)


def _named_records(name: str, split: str, draw: Draw) -> Iterator[Document]:
    import datasets

    parts = name.split(":")
    if len(parts) > 3 or not parts[0]:
        raise UsageError(
            f"{name!r} names no data set", hint="write NAME, NAME:CONFIG or NAME:CONFIG:SPLIT"
        )
    repository, config, wanted = (*parts, "", "")[:3]
    # Offline the library can only use a copy that it downloaded before, which it cannot stream.
    offline = bool(datasets.config.HF_HUB_OFFLINE)
    if not offline:
        _check_reachable(name)
    failures = (
        OSError,
        ValueError,
        RuntimeError,
        _http_error(),
        datasets.exceptions.DatasetsError,
    )
    try:
        data: Any = datasets.load_dataset(
            repository,
            config or None,
            streaming=not offline,
            download_config=datasets.DownloadConfig(max_retries=1),
        )
        chosen = wanted or _pick_split(list(data), split)
        if chosen not in data:
            raise DataError(
                f"{name}: no split {chosen!r} (there are {', '.join(data)})",
                hint="write NAME:CONFIG:SPLIT with one of these",
            )
        records = _shuffled(data[chosen], draw, offline)
        if records.column_names is not None:
            records = records.select_columns(_known_columns(records.column_names, name))
        for number, record in enumerate(records):
            yield record_document(record, f"{name}, record {number + 1}")
    except failures as error:
        raise DataError(
            f"{name}: this data set cannot be loaded ({_line(error)})",
            hint=_LOCAL_HINT,
        ) from error


def _check_reachable(name: str) -> None:
    """Ask once, because the library itself would go on trying for half a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_CONNECT_S)
    except (OSError, _http_error()) as error:
        raise DataError(
            f"{name}: no such file, and {constants.ENDPOINT} cannot be reached ({_line(error)})",
            hint=_LOCAL_HINT,
        ) from error


def _http_error() -> type[Exception]:
    """What the HTTP client of the hub library raises, whichever client that is today."""
    from huggingface_hub.errors import HfHubHTTPError

    base: type[Exception] = HfHubHTTPError.__bases__[0]
    return base


def _shuffled(data: Any, draw: Draw, offline: bool) -> Any:
    seed = int(torch.randint(2**31, (1,), generator=draw.generator))
    return data.shuffle(seed=seed, **({} if offline else {"buffer_size": _SHUFFLE_RECORDS}))


def _pick_split(available: Sequence[str], split: str) -> str:
    return next((name for name in _SPLITS[split] if name in available), available[0])


def _known_columns(names: Iterable[str], where: str) -> list[str]:
    found = [name for name in _COLUMNS if name in names]
    if not found:
        raise DataError(
            f"{where}: no column `text` or `messages` (columns: {', '.join(names)})",
            hint="rename the column, or write the texts to a JSONL file with `text`",
        )
    return found


def _line(error: Exception) -> str:
    """The first line of what the library said."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
