"""What a file that is not what its name says most likely is."""

_SIGNS = (
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer", "run `git lfs pull`"),
    (b"GGUF", "a GGUF file", "give it to quantkit with the suffix .gguf"),
    (b"PK\x03\x04", "a zip archive, as torch.save writes", "name it pytorch_model.bin"),
    (b"\x80", "a Python pickle", "pickles can run code; get the safetensors file"),
    (b"<", "an HTML or XML page", "the download answered with a web page; download it again"),
)
_DEFAULT_HINT = "download or copy the file again"


def likely_cause(head: bytes) -> tuple[str, str]:
    """Guess from the first bytes of a damaged file.

    Returns:
        ``" (it is ...)"`` or an empty string, and a hint.
    """
    stripped = head.lstrip()
    for sign, what, hint in _SIGNS:
        if stripped.startswith(sign):
            return f" (it is {what})", hint
    return "", _DEFAULT_HINT
