"""Models split over several GGUF files: ``name-00001-of-00003.gguf`` and so on, read as one."""

import re
from dataclasses import replace
from pathlib import Path

from quantkit.errors import ModelError
from quantkit.formats.gguf.container import Header, read_header
from quantkit.formats.gguf.fields import Fields

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_joined(path: Path) -> Header:
    """The header of a file; of the first file of a split model, the tensors of all files together.

    The metadata is that of the first file, as the format demands.

    Raises:
        ModelError: a file of the set is missing, damaged, or does not belong to it.
    """
    first = read_header(path)
    fields = Fields(path, first.metadata)
    count = fields.integer("split.count", 1)
    if count <= 1:
        return first
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelError(
            f"{path} is one of {count} files of a split model but its name does not say which",
            hint="keep the names as they were: name-00001-of-00003.gguf",
        )
    if fields.integer("split.no") != 0:
        one = path.with_name(f"{match['stem']}-00001-of-{count:05d}.gguf")
        raise ModelError(f"{path} is not the first file of a split model", hint=f"give {one}")
    tensors = list(first.tensors)
    seen = {entry.name for entry in tensors}
    for number in range(1, count):
        part = path.with_name(f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf")
        if not part.is_file():
            raise ModelError(f"{part} is missing, one of {count} files of the model {path}")
        header = read_header(part)
        declared = Fields(part, header.metadata)
        if declared.integer("split.count") != count or declared.integer("split.no") != number:
            raise ModelError(f"{part} does not belong to the split model {path}")
        for entry in header.tensors:
            if entry.name in seen:
                raise ModelError(f"{part}: tensor {entry.name!r} stands in another file too")
            seen.add(entry.name)
            tensors.append(entry)
    total = fields.integer("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ModelError(f"{path} declares {total} tensors, its {count} files hold {len(tensors)}")
    return replace(first, tensors=tuple(tensors))
