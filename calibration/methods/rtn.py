"""Round to nearest, with scales that minimize the weighted error.

Minimizes sum_k h_k (w_k - q_k)^2 group by group, h being the mean square of input channel k. With
``scale_search: none`` it is plain absmax rounding, the baseline that other methods are measured
against. Cost: one pass over the weights for each of about 40 scale candidates.
"""

from torch import Tensor

from quantkit.calibration.method import Method, MethodOptions, Need, Rounded
from quantkit.calibration.stats import Stats
from quantkit.core.grids import ScaleSearch, round_nearest
from quantkit.core.scheme import Scheme


class RtnOptions(MethodOptions):
    """``scale_search``: none (absmax), mse (inputs weigh the same), weighted (by calibration)."""

    scale_search: ScaleSearch = "weighted"


def needs(options: RtnOptions) -> frozenset[Need]:
    """The weighted search reads the importance of the input channels."""
    return frozenset({"importance"}) if options.scale_search == "weighted" else frozenset()


def round_rtn(weight: Tensor, stats: Stats | None, scheme: Scheme, options: RtnOptions) -> Rounded:
    """Round weights [N, K]; see ``Method.round``."""
    importance = stats.importance if stats is not None else None
    tensor = round_nearest(weight, scheme, importance, options.scale_search)
    heavy = 1.0 if importance is None else importance
    miss = (tensor.decode() - weight).square_().mul_(heavy).sum()
    return Rounded(tensor, float(miss / (weight.square() * heavy).sum().clamp_min(1e-30)))


METHOD = Method(
    name="rtn",
    summary="round to nearest, scales chosen by weighted error (or absmax)",
    options=RtnOptions,
    needs=needs,
    round=round_rtn,
)
