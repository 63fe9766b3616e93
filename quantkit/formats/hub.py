"""Models from a hub: one snapshot of a repository's safetensors, configs and tokenizer."""

import os
import re
from pathlib import Path

from quantkit.errors import ModelError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model", "LICENSE*", "*.md")
# Folders hold other spellings of the same weights; so do Mistral's consolidated files.
_UNWANTED = ("*/*", "consolidated*")
_HINT = "give the path of a local folder, or download the model where there is a network"


def is_hub_id(ref: str) -> bool:
    """Whether ``ref`` has the form ``org/name`` of a hub id and is no local path."""
    is_path = ref.startswith((".", "/", "~")) or ref.endswith(".gguf") or os.path.lexists(ref)
    return not is_path and _ID.fullmatch(ref) is not None


def download(model_id: str, *, revision: str | None = None) -> Path:
    """Fetch a snapshot (or find it in the cache) and return its folder.

    HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE count as everywhere.

    Raises:
        ModelError: the hub cannot be reached, or has no such model, or it has no safetensors.
    """
    from huggingface_hub import errors, snapshot_download

    # The hub library changed its HTTP client twice; this is the base of whatever it raises today.
    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        folder = Path(
            snapshot_download(
                model_id,
                revision=revision,
                endpoint=os.environ.get("HF_ENDPOINT"),
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_UNWANTED),
            )
        )
    except errors.GatedRepoError:
        raise ModelError(
            f"{model_id}: access to this hub model must be asked for",
            hint="accept its terms on the hub and set HF_TOKEN, or give a local folder",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{model_id} is neither a folder here nor a model on the hub",
            hint="check the name; a private model needs HF_TOKEN; a local folder needs its path",
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{model_id} has no revision {revision!r} on the hub") from None
    except (OSError, ValueError, errors.EntryNotFoundError, http_error) as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise ModelError(
            f"{model_id} is no folder here and cannot be fetched from the hub: {reason}", hint=_HINT
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{model_id} has no safetensors weights on the hub",
            hint="download it yourself and give the path of the local folder",
        )
    return folder
