"""FolderFormat: a Hugging Face folder with safetensors, in the spelling of one codec."""

from functools import partial
from pathlib import Path

from quantkit.archs import model_config
from quantkit.core.checkpoint import Checkpoint
from quantkit.core.output import OutputPlan, PlannedTensor, Writer
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError
from quantkit.formats.codec import Codec, float_entry
from quantkit.formats.companions import read_companions
from quantkit.formats.folder import FolderWriter
from quantkit.formats.json_file import QUANTIZATION_KEYS, quantization_of, read_config
from quantkit.formats.weights import open_weights


class FolderFormat:
    """One container that is a folder; see ``core.output.Format``."""

    def __init__(self, codec: Codec) -> None:
        self.name = codec.name
        self.codec = codec

    def sniff(self, path: Path) -> bool:
        """Whether ``path`` is a folder that declares this container's quantization.

        A folder whose config cannot be read counts as a float model, so that opening it says why.
        """
        if not path.is_dir():
            return False
        try:
            method, _ = quantization_of(path, read_config(path))
        except ModelError:
            method = None
        return method == self.codec.quant_method

    def admits(self, scheme: Scheme, shape: tuple[int, ...]) -> str | None:
        """Why a tensor of that scheme and shape cannot be stored, or None when it can."""
        return self.codec.admits(scheme, shape)

    def nbytes(self, tensor: PlannedTensor) -> int:
        """Exact bytes of the tensor in the file, scales included."""
        if tensor.scheme is None:
            return float_entry(tensor).nbytes
        return sum(entry.nbytes for entry in self.codec.entries(tensor))

    def open(self, path: Path) -> Checkpoint:
        """Open a folder for reading; headers of all files are checked, no tensor is read.

        Raises:
            ModelError: the folder is damaged, incomplete or of another container.
        """
        config = read_config(path)
        method, block = quantization_of(path, config)
        if method != self.codec.quant_method:
            raise ModelError(f"{path} is not a {self.name} folder: its quantization is {method}")
        try:
            model = model_config(config)
        except ModelError as error:
            raise ModelError(f"{path}: {error.message}", hint=error.hint) from None
        decoder = self.codec.decoder(open_weights(path), block, path)
        return Checkpoint(
            path=path,
            format=self.name,
            config={key: value for key, value in config.items() if key not in QUANTIZATION_KEYS},
            model=model,
            tensors=decoder.tensors,
            reader=decoder.load,
            companion_reader=partial(read_companions, path),
            quant_method=method,
            metadata={"quantization_config": dict(block)} if block else {},
        )

    def writer(self, path: Path, plan: OutputPlan, *, force: bool = False) -> Writer:
        """Start writing the folder ``path``; see ``core.output.Format``."""
        return FolderWriter(path, plan, self.codec, force=force)
