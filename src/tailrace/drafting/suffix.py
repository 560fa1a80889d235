"""Suffix automaton: drafts the tokens that followed the last tokens in any earlier text of this process.

The text may be of this sequence or another, running or finished (Blumer et al. 1985, "The smallest automaton
recognizing the subwords of a text"; for speculation Oliaro et al., arXiv 2411.04975). It needs no weights. It is good
if requests resemble each other: agents, edits of the same files, forms.

Privacy: another request's text never changes the output, since verification is exact, but it changes the speed of
tokens. A client that measures the time between tokens can test whether another request contained a given continuation.
If parties that must not learn of each other share a server, use n-grams (drafting/ngram.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.prefix import count_valid_prefix
from tailrace.errors import ConfigError

BITE = 4096  # New tokens read in one step, of all texts. They take 10 ms, so a long prompt delays no one.
HOPS = 64  # Links along which an occurrence is counted. A run of one token has as many as its length.
MAX_CAPACITY = 1 << 30


class Suffix(Drafter):
    """Drafter that searches the texts of all requests.

    It looks for the longest suffix of at least min_match tokens that was seen before. It drafts the token that followed
    it most often, then the token that followed that, and so on. The draft ends where its tokens together, by these
    counts, are less likely than min_share. A suffix of n tokens allows at most n·per_match drafts.

    Memory: two generations of at most `capacity` states, of 0.2 to 0.4 kB each. A token takes one state or two. One
    that repeats a text from its beginning takes none. A full generation is searched until the next one is full, then
    dropped.

    Raises:
        ConfigError: a parameter out of range.
    """

    def __init__(
        self, capacity: int = 1 << 17, min_match: int = 2, min_share: float = 0.2, per_match: float = 1.0
    ) -> None:
        if not 3 <= capacity <= MAX_CAPACITY:
            raise ConfigError(f"capacity must be in 3 … {MAX_CAPACITY}, got {capacity}")
        if min_match < 1:
            raise ConfigError(f"min_match must be ≥ 1, got {min_match}")
        if not 0.0 <= min_share <= 1.0:
            raise ConfigError(f"min_share must be in 0 … 1, got {min_share}")
        if not 0.0 < per_match < float("inf"):
            raise ConfigError(f"per_match must be a positive number, got {per_match}")
        self._capacity = capacity
        self._min_match = min_match
        self._min_share = min_share
        self._per_match = per_match
        self._young, self._old = SuffixAutomaton(), SuffixAutomaton()
        self._texts: dict[int, _ReadText] = {}

    @property
    def num_states(self) -> int:
        """The number of states of both generations."""
        return len(self._young.edges) + len(self._old.edges)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one-hot drafts; none where nothing matches, or while a long text is still being read."""
        left, drafts = BITE, []
        for request in requests:
            text = self._texts.setdefault(request.slot, _ReadText())
            text.cut(request.tokens, self._young, self._old)
            new = request.tokens[len(text.tokens) : len(text.tokens) + left]
            left -= len(new)
            for token in new:
                self._grow_text(text, token)
            drafts.append(
                Draft(self._follow_match(text, request.count) if len(text.tokens) == len(request.tokens) else [])
            )
        return drafts

    def remove(self, slot: int) -> None:
        """Drop the slot's reading position. The automaton keeps its text."""
        self._texts.pop(slot, None)

    def _grow_text(self, text: _ReadText, token: int) -> None:
        if len(self._young.edges) + 2 > self._capacity:  # a token adds two states at most
            self._old, self._young = self._young, SuffixAutomaton()
            for other in self._texts.values():
                other.shift_generation(self._old)
        text.path.append(self._young.grow(text.path[-1], token))
        text.old = self._old.step(*text.old, token)
        text.tokens.append(token)

    def _follow_match(self, text: _ReadText, count: int) -> list[int]:
        """Draft from the generation that agrees over more tokens; if both do, from the younger."""
        young, old = self._young.find_fallback(text.path[-1]), self._old.find_fallback(*text.old)
        automaton, (state, matched) = (self._young, young) if young[1] >= old[1] else (self._old, old)
        count = min(count, max(1, int(matched * self._per_match)))
        draft, sure = [], 1.0
        while len(draft) < count and matched >= self._min_match:
            token, share = automaton.likeliest(state)
            sure *= share
            if sure < self._min_share:
                break
            draft.append(token)
            state, matched = automaton.find_fallback(automaton.edges[state][token], matched + 1)
        return draft


class _ReadText:
    """The reading position of one sequence.

    - tokens: the tokens read so far.
    - path: its states in the younger generation; path[i] is the state after the first since + i tokens.
    - old: its state in the older generation, and how many of the last tokens the state stands for.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.since = 0
        self.path = array("i", [0])
        self.old = (0, 0)

    def shift_generation(self, old: SuffixAutomaton) -> None:
        """Adjust to a change of generations: the younger one has become `old`, and an empty one has replaced it."""
        self.old = (self.path[-1], old.length[self.path[-1]])
        self.since, self.path = len(self.tokens), array("i", [0])

    def cut(self, tokens: Sequence[int], young: SuffixAutomaton, old: SuffixAutomaton) -> None:
        """Go back to the point up to which `tokens` agrees with the tokens read."""
        mine = self.tokens
        if (shared := count_valid_prefix(mine, tokens)) == len(mine):
            return
        del mine[shared:]
        while len(self.path) > 1 and self.since + len(self.path) - 1 > shared:
            young.forget(self.path.pop())
        self.since = min(self.since, shared)
        self.old = (0, 0)
        for token in mine[-HOPS:]:
            self.old = old.step(*self.old, token)


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
