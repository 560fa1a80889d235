"""Suffix automaton: drafts what followed the last tokens in any text that was seen, of this sequence or of others,
running or finished (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; for speculation
Oliaro et al., arXiv 2411.04975). Needs no weights. Good where requests resemble one another: agents, edits of the same
files, forms.

Privacy: a text of another request never changes the output, since verification is exact, but it changes how fast tokens
come. Whoever measures the time between tokens can learn whether a continuation that they try was written in another
request. Where requests of parties that must not learn of each other share a server, use n-grams (drafting/ngram.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from tailrace.drafting.base import Draft, DraftRequest, TargetStates
from tailrace.drafting.prefix import standing
from tailrace.errors import ConfigError

BITE = 4096  # new tokens read in one step, of all texts together, so that a long prompt stops nobody: 10 ms
HOPS = 64  # links along which an occurrence is counted: a run of one token has as many as it is long
MAX_CAPACITY = 1 << 30


class Suffix:
    """Drafts from the longest suffix of at least min_match tokens that was seen before: the token that followed it most
    often, then the token that followed that, and so on. The draft ends where its tokens together, by these counts, are
    less likely than min_share. A suffix of n tokens allows at most n·per_match drafts.

    Memory: two generations of at most `capacity` states, of 0.2 to 0.4 kB each; a token takes one state or two, one
    that repeats a text from its beginning none. A full generation is searched until the next one is full, then dropped.

    Raises:
        ConfigError: a parameter out of range.
    """

    draws = False
    captures: tuple[int, ...] = ()

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
        """Of both generations."""
        return len(self._young.edges) + len(self._old.edges)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One-hot drafts; none where nothing matches, or while a long text is still being read."""
        left, drafts = BITE, []
        for request in requests:
            text = self._texts.setdefault(request.slot, _ReadText())
            text.cut(request.tokens, self._young, self._old)
            new = request.tokens[len(text.tokens) : len(text.tokens) + left]
            left -= len(new)
            for token in new:
                self._read(text, token)
            drafts.append(Draft(self._follow(text, request.count) if len(text.tokens) == len(request.tokens) else []))
        return drafts

    def observe(self, seen: TargetStates) -> None:
        """Hidden states say nothing here."""

    def remove(self, slot: int) -> None:
        """Forget the slot; what it said is kept."""
        self._texts.pop(slot, None)

    def _read(self, text: _ReadText, token: int) -> None:
        if len(self._young.edges) + 2 > self._capacity:  # a token adds two states at most
            self._old, self._young = self._young, SuffixAutomaton()
            for other in self._texts.values():
                other.age(self._old)
        text.path.append(self._young.grow(text.path[-1], token))
        text.old = self._old.step(*text.old, token)
        text.tokens.append(token)

    def _follow(self, text: _ReadText, count: int) -> list[int]:
        """From the generation that agrees over more tokens; if both do, from the younger."""
        young, old = self._young.fallback(text.path[-1]), self._old.fallback(*text.old)
        automaton, (state, matched) = (self._young, young) if young[1] >= old[1] else (self._old, old)
        count = min(count, max(1, int(matched * self._per_match)))
        draft, sure = [], 1.0
        while len(draft) < count and matched >= self._min_match:
            token, share = automaton.likeliest(state)
            sure *= share
            if sure < self._min_share:
                break
            draft.append(token)
            state, matched = automaton.fallback(automaton.edges[state][token], matched + 1)
        return draft


class _ReadText:
    """Where a sequence stands. tokens: what has been read of it. path: its states in the younger generation, path[i]
    after the first since + i tokens. old: state in the older generation and how many of the last tokens it stands
    for."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.since = 0
        self.path = array("i", [0])
        self.old = (0, 0)

    def age(self, old: SuffixAutomaton) -> None:
        """The younger generation has become `old`, and an empty one is in its place."""
        self.old = (self.path[-1], old.length[self.path[-1]])
        self.since, self.path = len(self.tokens), array("i", [0])

    def cut(self, tokens: Sequence[int], young: SuffixAutomaton, old: SuffixAutomaton) -> None:
        """Go back to where these tokens are still what has been read."""
        mine = self.tokens
        if (shared := standing(mine, tokens)) == len(mine):
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

    A state stands for the strings that end at the same places of the texts: its longest has length[state] tokens, the
    others are its suffixes down to one token more than length[link[state]]. edges[state]: token → state; count[state]:
    at how many places (a lower bound where more than HOPS suffixes have states of their own). State 0 is the empty
    string. All texts begin there, so no string reaches from one into another.
    """

    def __init__(self) -> None:
        self.edges: list[dict[int, int]] = [{}]
        self.link = array("i", [-1])
        self.length = array("i", [0])
        self.count = array("i", [0])

    def grow(self, text: int, token: int) -> int:
        """A text that ends in state `text` goes on with `token`: the state in which it ends now. States that texts
        ended in stay theirs: a state that is split keeps its longest string."""
        known = self.edges[text].get(token)
        if known is not None:
            state = self._exactly(text, token, known)
        else:
            state, at = self._new(self.length[text] + 1, {}, 0, 0), text
            while at >= 0 and token not in self.edges[at]:
                self.edges[at][token] = state
                at = self.link[at]
            if at >= 0:
                self.link[state] = self._exactly(at, token, self.edges[at][token])
        for each in self._suffixes(state):
            self.count[each] += 1
        return state

    def forget(self, state: int) -> None:
        """Decrement the counts of this state and its suffixes: the text that ended here was removed."""
        for each in self._suffixes(state):
            self.count[each] -= 1

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """A string whose last `matched` tokens are in the automaton goes on with `token` (amortised O(1)): the longest
        suffix of it that is there, as its state and length."""
        while token not in self.edges[state]:
            if state == 0:
                return 0, 0
            state = self.link[state]
            matched = self.length[state]
        return self.edges[state][token], matched + 1

    def fallback(self, state: int, matched: int | None = None) -> tuple[int, int]:
        """The longest suffix that is followed by something, and its length; (0, 0) if none is."""
        matched = self.length[state] if matched is None else matched
        while state:
            for target in self.edges[state].values():
                if self.count[target] > 0:
                    return state, matched
            state = self.link[state]
            matched = min(matched, self.length[state])
        return 0, 0

    def likeliest(self, state: int) -> tuple[int, float]:
        """What followed most often, the one seen last if several did, and its share; the state is followed by
        something."""
        count, best, most, total = self.count, 0, 0, 0
        for token, target in self.edges[state].items():
            total += max(0, count[target])
            if count[target] >= max(most, 1):
                best, most = token, count[target]
        return best, most / total

    def _exactly(self, state: int, token: int, target: int) -> int:
        """The state whose longest string is state's longest one and `token`: the target of that edge, or what is split
        off it."""
        length = self.length[state] + 1
        if self.length[target] == length:
            return target
        split = self._new(length, self.edges[target].copy(), self.link[target], self.count[target])
        self.link[target] = split
        while state >= 0 and self.edges[state].get(token) == target:
            self.edges[state][token] = split
            state = self.link[state]
        return split

    def _new(self, length: int, edges: dict[int, int], link: int, count: int) -> int:
        self.edges.append(edges)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        return len(self.edges) - 1

    def _suffixes(self, state: int) -> Iterator[int]:
        """The state and those of its suffixes, the longest HOPS, without the empty one."""
        for _ in range(HOPS):
            if state == 0:
                return
            yield state
            state = self.link[state]
