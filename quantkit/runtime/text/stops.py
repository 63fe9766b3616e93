"""Stop strings over streamed text, with hold-back of what may become one."""

from collections.abc import Sequence


class _Automaton:
    """Knuth, Morris and Pratt's matcher of one string: how much of it the text ends with."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._back = [0] * len(pattern)  # longest proper border of pattern[: i + 1]
        length = 0
        for i in range(1, len(pattern)):
            while length and pattern[i] != pattern[length]:
                length = self._back[length - 1]
            length += pattern[i] == pattern[length]
            self._back[i] = length

    def step(self, char: str) -> bool:
        """Read one character; True when the string is complete."""
        while self.matched and char != self.pattern[self.matched]:
            self.matched = self._back[self.matched - 1]
        self.matched += char == self.pattern[self.matched]
        return self.matched == len(self.pattern)


class StopMatcher:
    """Finds the stop string that is complete first and never lets a part of it out.

    Text is read character by character, so the result does not depend on how it is cut into
    tokens. Where two stop strings are complete at the same character, the longer one counts.

    Args:
        stops: the strings, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Read new text.

        Returns:
            The text that can go out, and the stop string that was found, if any. What follows a
            found stop string is dropped, and nothing may be pushed after it.
        """
        if not self._automata:
            return text, None
        buffer = self._held + text
        for at in range(len(self._held), len(buffer)):
            found = [a.pattern for a in self._automata if a.step(buffer[at])]
            if found:
                longest = max(found, key=len)
                self._held = ""
                return buffer[: at + 1 - len(longest)], longest
        keep = len(buffer) - max(a.matched for a in self._automata)
        self._held = buffer[keep:]
        return buffer[:keep], None

    def flush(self) -> str:
        """The text held back, once it is clear that no stop string will follow."""
        held, self._held = self._held, ""
        return held
