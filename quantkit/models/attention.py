"""Causal attention over grouped heads, for one sequence with a past and for batches of windows."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
    """Attention of the newest tokens of one sequence to all of it.

    Args:
        q: [Tq, H, D]; the last query stands at the last key.
        k, v: [Tk, Hk, D] with H a multiple of Hk.
        scale: factor on q.k.
        window: keys further back than this many tokens are not seen (the token itself counts).

    Returns:
        [Tq, H, D]; a query that sees no key gives zeros.
    """
    tq, tk = q.shape[0], k.shape[0]
    query_at = torch.arange(tk - tq, tk, device=q.device)
    seen = _visible(query_at, torch.arange(tk, device=q.device), window)
    mask = None if bool(seen.all()) else seen
    out = _sdpa(q[None], k[None], v[None], scale, mask)[0]
    return out if tq <= tk else out.masked_fill(~seen.any(-1)[:, None, None], 0.0)


def attend_windows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None = None,
    docs: Tensor | None = None,
) -> Tensor:
    """Causal attention inside each of B windows, and inside each document of a window.

    Args:
        q: [B, L, H, D].
        k, v: [B, L, Hk, D].
        scale: factor on q.k.
        window: as in ``attend``.
        docs: document number of each token [B, L]; tokens see only their own document.

    Returns:
        [B, L, H, D].
    """
    length = q.shape[1]
    at = torch.arange(length, device=q.device)
    if docs is None and (window is None or window >= length):
        return _sdpa(q, k, v, scale, None, causal=True)
    mask = _visible(at, at, window)
    if docs is not None:
        mask = mask & (docs[:, None, :, None] == docs[:, None, None, :])
    return _sdpa(q, k, v, scale, mask)


def _visible(query_at: Tensor, key_at: Tensor, window: int | None) -> Tensor:
    """[Tq, Tk] True where the query may see the key."""
    distance = query_at[:, None] - key_at[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, causal: bool = False
) -> Tensor:
    """Softmax attention on [B, T, H, D]; torch accumulates in float32 or wider."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)
