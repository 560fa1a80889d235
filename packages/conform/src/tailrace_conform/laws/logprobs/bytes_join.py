"""The tokens' bytes join to the text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tailrace_conform.context import LawContext
from tailrace_conform.law import Law
from tailrace_conform.plain import quoted
from tailrace_conform.reply import ReplyChoice, ReplyToken
from tailrace_conform.reported import Looked, check
from tailrace_conform.spread import names_one_token
from tailrace_conform.verdict import Verdict

SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")  # <|im_end|>, </s>, [INST]


def spelt(tokens: Sequence[ReplyToken], text: bytes) -> bytes:
    """The tokens' bytes. A special token that the text does not have at its place is left out, as servers do."""
    data = b""
    for token in tokens:
        more = token.text.encode(errors="replace") if token.raw is None else token.raw
        if text.startswith(data + more) or not SPECIAL.fullmatch(token.text):
            data += more
    return data


def look(choice: ReplyChoice) -> Looked:
    """An end token may be reported without being in the text; a character that the length limit has cut may be missing,
    or stand there as U+FFFD. Texts of tokens (legacy completions) can't tell pieces of characters: such answers are
    left out, and so are answers with thoughts or calls, whose text is elsewhere."""
    tokens = list(choice.tokens)
    if any(token.raw is None and ("\ufffd" in token.text or token.text.startswith("bytes:")) for token in tokens):
        return 0, None
    spellings = []
    for kept in (tokens, tokens[:-1]):
        data = spelt(kept, choice.text.encode(errors="replace"))
        spellings += [data.decode(errors="replace"), data.decode(errors="ignore")]
        if not tokens or (choice.finish_reason != "stop" and names_one_token(tokens[-1].text)):
            break
    if not tokens or choice.reasoning or choice.tool_calls:
        return 0, None
    if choice.text in spellings or choice.text.rstrip("\ufffd") in spellings:
        return len(tokens), None
    return len(tokens), f"the tokens spell {quoted(spellings[0][-60:])}, the text is {quoted(choice.text[-60:])}"


async def check_law(ctx: LawContext) -> Verdict:
    return await check(ctx, look)


LAW = Law(
    id="logprobs.bytes-join",
    sentence="The bytes of the reported tokens join to the text.",
    why="Scores are mapped to parts of the text by them; one token more or fewer shifts all that follow.",
    method="Answers with characters of several bytes are asked with logprobs; the tokens' bytes are joined and "
    "compared with the text. Special tokens that the text leaves out, a reported end token, and a character that the "
    "length has cut are allowed for.",
    violation="A token is missing, reported twice, or its bytes are not those of the text.",
    check=check_law,
    needs=("logprobs",),
)
