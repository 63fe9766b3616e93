"""Sentencepiece vocabularies: GGUF's score for each token against tokenizer.json's list of merges.

llama.cpp joins the neighbors whose joined token has the highest score, tokenizer.json the pair that
stands first in its list. Sorted by the score of what they make, all pairs that make a token are the
list; the place in the list, negated, is the score.
"""

from collections.abc import Mapping, Sequence


def merges_from_scores(
    vocabulary: Mapping[str, int], scores: Mapping[str, float]
) -> list[tuple[str, str]]:
    """The list of merges.

    Args:
        vocabulary: token -> id.
        scores: token -> score, for every token that may be made by joining two.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for token, score in scores.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-score, vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def scores_from_merges(merges: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Score of every token that a merge makes: minus its first place in the list."""
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        scores.setdefault(left + right, -float(rank))
    return scores


def missing_merges(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], scores: Mapping[str, float]
) -> int:
    """Number of pairs that llama.cpp would join and the list does not hold.

    Where it is not zero, some texts may get other ids in llama.cpp.
    """
    return len(set(merges_from_scores(vocabulary, scores)) - set(merges))
