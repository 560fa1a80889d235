"""Suffix automaton: every substring of several texts, and how often each came (Blumer et al. 1985, "The smallest
automaton recognizing the subwords of a text")."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

HOPS = 64  # Links along which an occurrence is counted. A run of one token has as many as its length.


class SuffixAutomaton:
    """The suffix automaton of several texts, which may grow in turns and branch from anywhere.

    A state stands for the strings that end at the same places of the texts. Its longest string has length[state]
    tokens. The others are suffixes of it, down to one token more than length[link[state]]. State 0 is the empty string.
    All texts begin there, so no string reaches from one into another.

    - edges[state]: token → state.
    - count[state]: the number of places, a lower bound if more than HOPS suffixes have states of their own.
    """

    def __init__(self) -> None:
        self.edges: list[dict[int, int]] = [{}]
        self.link = array("i", [-1])
        self.length = array("i", [0])
        self.count = array("i", [0])

    def grow(self, text: int, token: int) -> int:
        """Append `token` to a text that ends in state `text`. Return the state in which it ends now.

        States in which texts end stay valid: a state that is split keeps its longest string.
        """
        known = self.edges[text].get(token)
        if known is not None:
            state = self._split_state(text, token, known)
        else:
            state, at = self._add_state(self.length[text] + 1, {}, 0, 0), text
            while at >= 0 and token not in self.edges[at]:
                self.edges[at][token] = state
                at = self.link[at]
            if at >= 0:
                self.link[state] = self._split_state(at, token, self.edges[at][token])
        for each in self._walk_suffixes(state):
            self.count[each] += 1
        return state

    def forget(self, state: int) -> None:
        """Decrement the counts of this state and its suffixes: the text that ended here was removed."""
        for each in self._walk_suffixes(state):
            self.count[each] -= 1

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Advance a string by one token, amortised O(1). Its last `matched` tokens lead to `state`.

        Returns the state and the length of the longest known suffix.
        """
        while token not in self.edges[state]:
            if state == 0:
                return 0, 0
            state = self.link[state]
            matched = self.length[state]
        return self.edges[state][token], matched + 1

    def find_fallback(self, state: int, matched: int | None = None) -> tuple[int, int]:
        """Return the longest suffix that a token follows, and its length; (0, 0) if there is no such suffix."""
        matched = self.length[state] if matched is None else matched
        while state:
            for target in self.edges[state].values():
                if self.count[target] > 0:
                    return state, matched
            state = self.link[state]
            matched = min(matched, self.length[state])
        return 0, 0

    def likeliest(self, state: int) -> tuple[int, float]:
        """Return the token that followed most often, the last one seen of several, and its share. A token must follow
        the state.
        """
        count, best, most, total = self.count, 0, 0, 0
        for token, target in self.edges[state].items():
            total += max(0, count[target])
            if count[target] >= max(most, 1):
                best, most = token, count[target]
        return best, most / total

    def _split_state(self, state: int, token: int, target: int) -> int:
        """Return the state whose longest string is state's longest one plus `token`: the edge's target, or a state
        split off it."""
        length = self.length[state] + 1
        if self.length[target] == length:
            return target
        split = self._add_state(length, self.edges[target].copy(), self.link[target], self.count[target])
        self.link[target] = split
        while state >= 0 and self.edges[state].get(token) == target:
            self.edges[state][token] = split
            state = self.link[state]
        return split

    def _add_state(self, length: int, edges: dict[int, int], link: int, count: int) -> int:
        self.edges.append(edges)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.edges) - 1

    def _walk_suffixes(self, state: int) -> Iterator[int]:
        """Yield the state and the states of its suffixes, at most HOPS, without the empty one."""
        for _ in range(HOPS):
            if state == 0:
                return
            yield state
            state = self.link[state]
