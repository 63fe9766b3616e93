"""GGUF as one of the containers."""

from pathlib import Path

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.output import OutputPlan, PlannedTensor, Writer
from quantkit.core.scheme import Scheme
from quantkit.formats.gguf import names
from quantkit.formats.gguf.container import has_magic, storage_bytes
from quantkit.formats.gguf.reader import open_gguf
from quantkit.formats.gguf.types import refusal, type_of
from quantkit.formats.gguf.writer import GgufWriter


class GgufFormat:
    """The container ``gguf``; see ``core.output.Format``."""

    name = "gguf"

    def sniff(self, path: Path) -> bool:
        """Whether ``path`` is a file that begins like GGUF."""
        return path.is_file() and has_magic(path)

    def admits(self, scheme: Scheme, shape: tuple[int, ...]) -> str | None:
        """Why a tensor of that scheme and shape cannot be stored, or None when it can."""
        return refusal(scheme, shape)

    def nbytes(self, tensor: PlannedTensor) -> int:
        """Exact bytes of the tensor's data, scales included; padding between tensors is apart."""
        return 0 if names.is_derived(tensor.name) else storage_bytes(type_of(tensor), tensor.shape)

    def open(self, path: Path) -> Checkpoint:
        """Open a file, or the first of a split model; see ``reader.open_gguf``."""
        return open_gguf(path)

    def writer(self, path: Path, plan: OutputPlan, *, force: bool = False) -> Writer:
        """Start writing the file ``path``; see ``core.output.Format``."""
        return GgufWriter(path, plan, force=force)


FORMAT = GgufFormat()
