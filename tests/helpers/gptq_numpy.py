"""A second reading of GPTQ files, bit by bit in numpy, for tests only.

Written from the layout alone: a column of qweight is one stream of bits over the inputs, a row of
qzeros one over the outputs, lowest bit first.
"""

import numpy as np
from numpy.typing import NDArray


def stream_codes(words: NDArray[np.int32], bits: int, count: int) -> NDArray[np.int64]:
    """The first ``count`` codes of a stream of 32-bit words."""
    stream = 0
    for position, word in enumerate(words.tolist()):
        stream |= (word & 0xFFFFFFFF) << (32 * position)
    return np.array([(stream >> (i * bits)) & ((1 << bits) - 1) for i in range(count)])


def decode(
    qweight: NDArray[np.int32],
    qzeros: NDArray[np.int32],
    scales: NDArray[np.float16],
    g_idx: NDArray[np.int32],
    *,
    bits: int,
    version: int,
) -> NDArray[np.float64]:
    """Weights [N, K] in float64.

    Version 1 follows the readers that add one to whole words (4, 8 and 2 bits), carry included.
    """
    inputs, outputs = len(g_idx), qweight.shape[1]
    if version == 1 and bits != 3:
        one = sum(1 << (i * bits) for i in range(32 // bits))
        qzeros = (qzeros.astype(np.int64) + one).astype(np.uint32).view(np.int32)
    codes = np.stack([stream_codes(qweight[:, n], bits, inputs) for n in range(outputs)])
    zeros = np.stack([stream_codes(row, bits, outputs) for row in qzeros])
    if version == 1 and bits == 3:
        zeros = zeros + 1
    wide = scales.astype(np.float64)
    return np.stack(
        [
            [wide[g_idx[k], n] * (codes[n, k] - zeros[g_idx[k], n]) for k in range(inputs)]
            for n in range(outputs)
        ]
    )
