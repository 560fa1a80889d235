"""Drafts the tokens that followed the last tokens in any earlier text of the same users.

The text may be of this sequence or another, running or finished (Oliaro et al., arXiv 2411.04975). It needs no weights.
It is good if requests resemble each other: agents, edits of the same files, forms.

Privacy: another request's text never changes the output, since verification is exact, but it changes the speed of
tokens. A client that measures the time between tokens can test whether a searched text contained a given continuation.
So only texts of requests with the same salt are searched, as with cached prefixes (decision 0088).
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from tailrace.drafting.base import Draft, Drafter, DraftRequest
from tailrace.drafting.ngram import score_match
from tailrace.drafting.prefix import count_valid_prefix
from tailrace.drafting.suffix_automaton import HOPS, SuffixAutomaton
from tailrace.errors import ConfigError

BITE = 4096  # New tokens read in one step, of all texts. They take 10 ms, so a long prompt delays no one.
REVIEW = 1024  # New tokens after which the shares are computed again.
MAX_DOMAINS = 256  # Beyond them a domain without running sequences is dropped.
MAX_CAPACITY = 1 << 30


class Suffix(Drafter):
    """Drafter that searches the texts of all requests of a domain: those with the same salt.

    It looks for the longest suffix of at least min_match tokens that was seen before. It drafts the token that followed
    it most often, then the token that followed that, and so on. The draft ends where its tokens together, by these
    counts, are less likely than min_share. A suffix of n tokens allows at most n·per_match drafts.

    Memory: a domain has two generations of states, of 0.2 to 0.4 kB each. A token takes one state or two. One that
    repeats a text from its beginning takes none. A full generation is searched until the next one is full, then
    dropped. All domains together have about 2·capacity states, and at most 2·REVIEW more. The domains of one user have
    at most the user's fair share: what is left when each other user has what it uses, or an equal part. A single domain
    has all of it.

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
        self._domains: OrderedDict[bytes, _Domain] = OrderedDict()  # the least recently used first
        self._unreviewed = 0  # new tokens since the shares were computed
        self._texts: dict[int, _ReadText] = {}

    @property
    def num_states(self) -> int:
        """The number of states of all domains."""
        return sum(domain.num_states for domain in self._domains.values())

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one-hot drafts; none where nothing matches, or while a long text is still being read."""
        left, drafts = BITE, []
        for request in requests:
            text = self._find_text(request)
            text.cut(request.tokens)
            new = request.tokens[len(text.tokens) : len(text.tokens) + left]
            left -= len(new)
            for token in new:
                self._grow_text(text, token)
            drafts.append(
                self._follow_match(text, request.count) if len(text.tokens) == len(request.tokens) else Draft([])
            )
        return drafts

    def remove(self, slot: int) -> None:
        """Drop the slot's reading position. The automaton keeps its text."""
        text = self._texts.pop(slot, None)
        if text is not None:
            del text.domain.texts[slot]

    def _find_text(self, request: DraftRequest) -> _ReadText:
        text = self._texts.get(request.slot)
        if text is not None and text.domain.salt == request.salt:
            return text
        self.remove(request.slot)
        if request.salt not in self._domains:
            self._domains[request.salt] = _Domain(request.salt, request.user if request.salt else "")
            self._unreviewed = REVIEW
        domain = self._domains[request.salt]
        self._domains.move_to_end(request.salt)
        text = self._texts[request.slot] = domain.texts[request.slot] = _ReadText(domain)
        return text

    def _grow_text(self, text: _ReadText, token: int) -> None:
        domain = text.domain
        self._unreviewed += 1
        if self._unreviewed > REVIEW:
            self._review_shares()
        if len(domain.young.edges) + 2 > domain.limit:  # a token adds two states at most
            domain.shift_generation()
        text.path.append(domain.young.grow(text.path[-1], token))
        text.old = domain.old.step(*text.old, token)
        text.tokens.append(token)

    def _review_shares(self) -> None:
        """Compute the shares, and drop what is beyond them."""
        self._unreviewed = 0
        while len(self._domains) > MAX_DOMAINS and self._drop_idle():
            pass
        used, number = Counter[str](), Counter[str]()
        for domain in self._domains.values():
            used[domain.user] += domain.num_states
            number[domain.user] += 1
        share = find_fair_share(used.values(), 2 * self._capacity)
        for domain in self._domains.values():
            for _ in range(2):  # its older generation, then its younger one
                if used[domain.user] > share:
                    used[domain.user] -= domain.shift_generation()
        for domain in self._domains.values():
            room = share - used[domain.user] + domain.num_states
            domain.limit = max(3, share // number[domain.user] // 2, room // 2)

    def _drop_idle(self) -> bool:
        """Drop a domain without running sequences of the user with the most such domains, the least recently used."""
        idle = [(salt, domain.user) for salt, domain in self._domains.items() if not domain.texts]
        number = Counter(user for _, user in idle)
        salt = max(idle, key=lambda each: number[each[1]], default=(None, ""))[0]
        return salt is not None and self._domains.pop(salt) is not None

    def _follow_match(self, text: _ReadText, count: int) -> Draft:
        """Draft from the generation that agrees over more tokens; if both do, from the younger. Scores are from the
        share of each continuation and the number of tokens that agree."""
        domain = text.domain
        young, old = domain.young.find_fallback(text.path[-1]), domain.old.find_fallback(*text.old)
        automaton, (state, matched) = (domain.young, young) if young[1] >= old[1] else (domain.old, old)
        count = min(count, max(1, int(matched * self._per_match)))
        draft, scores, sure = list[int](), list[float](), 1.0
        while len(draft) < count and matched >= self._min_match:
            token, share = automaton.likeliest(state)
            sure *= share
            if sure < self._min_share:
                break
            draft.append(token)
            scores.append(share * score_match(matched))
            state, matched = automaton.find_fallback(automaton.edges[state][token], matched + 1)
        return Draft(draft, scores=scores)


class _Domain:
    """The texts that may be drafted from for each other: those of requests with this salt.

    - user: whose share the states count in. The domain without a salt is nobody's.
    - texts: the reading positions of its sequences, by slot.
    - limit: most states of a generation.
    """

    def __init__(self, salt: bytes, user: str) -> None:
        self.salt, self.user = salt, user
        self.young, self.old = SuffixAutomaton(), SuffixAutomaton()
        self.texts: dict[int, _ReadText] = {}
        self.limit = 3

    @property
    def num_states(self) -> int:
        """The number of states of both generations."""
        return len(self.young.edges) + len(self.old.edges)

    def shift_generation(self) -> int:
        """Drop the older generation. The younger one takes its place. Return how many states are gone."""
        before = self.num_states
        self.old, self.young = self.young, SuffixAutomaton()
        for text in self.texts.values():
            text.shift_generation()
        return before - self.num_states


class _ReadText:
    """The reading position of one sequence.

    - tokens: the tokens read so far.
    - path: its states in the younger generation; path[i] is the state after the first since + i tokens.
    - old: its state in the older generation, and how many of the last tokens the state stands for.
    """

    def __init__(self, domain: _Domain) -> None:
        self.domain = domain
        self.tokens: list[int] = []
        self.since = 0
        self.path = array("i", [0])
        self.old = (0, 0)

    def shift_generation(self) -> None:
        """Adjust to a change of generations: the younger one has become the older, and an empty one has replaced it."""
        self.old = (self.path[-1], self.domain.old.length[self.path[-1]])
        self.since, self.path = len(self.tokens), array("i", [0])

    def cut(self, tokens: Sequence[int]) -> None:
        """Go back to the point up to which `tokens` agrees with the tokens read."""
        mine, young, old = self.tokens, self.domain.young, self.domain.old
        if (shared := count_valid_prefix(mine, tokens)) == len(mine):
            return
        del mine[shared:]
        while len(self.path) > 1 and self.since + len(self.path) - 1 > shared:
            young.forget(self.path.pop())
        self.since = min(self.since, shared)
        self.old = (0, 0)
        for token in mine[-HOPS:]:
            self.old = old.step(*self.old, token)


def find_fair_share(used: Iterable[int], total: int) -> int:
    """Return what one user may use of a total, if each other one has what it uses, or an equal part.

    The user with the most is not limited by what it uses now.
    """
    *others, _ = sorted(used)
    left, count = total, len(others) + 1
    for amount in others:
        if amount * count >= left:
            break
        left, count = left - amount, count - 1
    return left // count
