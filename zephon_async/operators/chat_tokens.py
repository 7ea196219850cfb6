"""Texts with spans to token ids with masks, and special tokens that are only text.

A token is in the mask where it overlaps a span, as transformers has it.

A message may contain the name of a special token. Such names stay text: they are marked before the template sees them, the
special tokens that the template itself writes are then replaced by aliases, and a copy of the tokenizer that knows the aliases
and no special tokens encodes the whole text at once. So the ids are those of a tokenizer to which what was said is no special
token: nothing else is cut apart, and no merge is lost. Tokens that were added but are not special (`<think>`, often) stay tokens.

Threads: a `ChatTokens` belongs to one call at a time.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_async.checks import shown
from zephon_async.errors import BadRecord
from zephon_async.operators.chat_messages import strings, walked

BEGIN, END = "\ufdd0", "\ufdd1"  # around a name that is text; no characters of any language


class Spanned(NamedTuple):
    """A text, and the spans of it that a loss is on. apart: its encoding, where names of special tokens are text in it."""

    text: str
    spans: Sequence[tuple[int, int]]
    apart: Any = None


class Tokens(NamedTuple):
    """ids: int32[n] of all texts end to end; mask: int8[n]; lengths: int64 of each text."""

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.int8]
    lengths: npt.NDArray[np.int64]

    def starts(self) -> npt.NDArray[np.int64]:
        starts: npt.NDArray[np.int64] = np.cumsum(self.lengths) - self.lengths
        return starts

    def supervised(self) -> npt.NDArray[np.int64]:
        """Tokens of each text that can be labels: those of the mask but for the first, before which there is nothing."""
        sums: npt.NDArray[np.int64] = np.concatenate(([0], np.cumsum(self.mask, dtype=np.int64)))
        starts = self.starts()
        found: npt.NDArray[np.int64] = sums[starts + self.lengths] - sums[np.minimum(starts + 1, starts + self.lengths)]
        return found

    def cut(self, most: int) -> "Tokens":
        kept = np.arange(len(self.ids)) - np.repeat(self.starts(), self.lengths) < most
        return Tokens(self.ids[kept], self.mask[kept], np.minimum(self.lengths, most))

    def only(self, rows: npt.NDArray[np.bool_]) -> "Tokens":
        kept = np.repeat(rows, self.lengths)
        return Tokens(self.ids[kept], self.mask[kept], self.lengths[rows])


def _tokens_of(encodings: Sequence[Any], several: Sequence[Spanned], aliases: dict[int, int], head: Any, tail: Any) -> Tokens:
    ids: list[int] = []
    mask, lengths = bytearray(), np.empty(len(encodings), np.int64)
    for number, (encoding, one) in enumerate(zip(encodings, several, strict=True)):
        inner = encoding.ids
        if one.apart is not None:
            inner = [aliases.get(token, token) for token in inner]
        base = len(ids) + len(head)
        ids += [*head, *inner, *tail]
        mask += bytes(len(head) + len(inner)) + b"\1" * len(tail)
        for start, stop in one.spans:
            first, behind = _overlapping(encoding, len(inner), start, stop)
            mask[base + first : base + behind] = b"\1" * (behind - first)
        lengths[number] = len(head) + len(inner) + len(tail)
    return Tokens(np.array(ids, np.int32), np.frombuffer(bytes(mask), np.int8), lengths)


def _overlapping(encoding: Any, n: int, start: int, stop: int) -> tuple[int, int]:
    """The tokens that overlap characters start:stop, which are in order."""
    place = encoding.token_to_chars
    first = bisect_right(range(n), start, key=lambda token: place(token)[1])
    return first, max(first, bisect_left(range(n), stop, lo=first, key=lambda token: place(token)[0]))


class ChatTokens:
    """A copy of a tokenizer for what templates render; or, with `as_text`, for texts in which all names are text."""

    def __init__(self, text: str, as_text: bool = False) -> None:
        import tokenizers

        self._text, self._plain = text, tokenizers.Tokenizer.from_str(text)
        self._plain.encode_special_tokens = as_text
        self._apart: Any = None
        self._aliases: dict[int, int] = {}
        added = self._plain.get_added_tokens_decoder()
        self._special = {token.content: (number, token) for number, token in added.items() if token.special and token.content}
        self._normalized: dict[str, str] = {}  # what of a name is looked for in what is normalized, where a token says so
        if (normalizer := self._plain.normalizer) is not None:
            made = ((name, normalizer.normalize_str(name)) for name, (_, token) in self._special.items() if token.normalized)
            self._normalized = {name: looked_for for name, looked_for in made if looked_for}
        names = "|".join(map(re.escape, sorted(self._special, key=len, reverse=True))) or "(?!)"
        self._name = re.compile(names)
        self._marked = re.compile(f"({BEGIN}?)({names})({END}?)|[{BEGIN}{END}]")

    def names_in(self, value: Any) -> frozenset[str]:
        """The special tokens whose names are in the texts of a value."""
        search = self._name.search
        found = {name for text in strings(value) if search(text) for name in self._name.findall(text)}
        if self._normalized:
            texts = [self._plain.normalizer.normalize_str(text) for text in strings(value)]
            found |= {name for name, looked_for in self._normalized.items() if any(looked_for in text for text in texts)}
        return frozenset(found)

    def mark(self, value: Any) -> Any:
        """A value in whose texts the names of special tokens are marked as text."""
        for text in strings(value):
            if BEGIN in text or END in text:
                raise BadRecord(f"tokenize_chat: a text has U+FDD0 or U+FDD1 beside the name of a special token: {shown(text)}")
        return walked(value, lambda text: self._name.sub(rf"{BEGIN}\g<0>{END}", text))

    def unmark(self, text: str, spans: Sequence[tuple[int, int]], unmarked: str) -> Spanned:
        """What was rendered of marked values: names as text, and aliases for the special tokens of the template.

        unmarked: what was rendered of the values without marks. `BadRecord` where the marks made a difference to the template.
        """
        if text.replace(BEGIN, "").replace(END, "") != unmarked:
            raise BadRecord(
                "tokenize_chat: a message contains the name of a special token, and the chat template looks into it, so what is "
                "text cannot be told; special_text='token' makes special tokens of such names"
            )
        edges = sorted({0, len(text), *(edge for span in spans for edge in span)})
        pieces = [self._marked.sub(self._replaced, text[start:stop]) for start, stop in pairwise(edges)]
        places = dict(zip(edges, np.cumsum([0, *map(len, pieces)]).tolist(), strict=True))
        return self.apart("".join(pieces), [(places[start], places[stop]) for start, stop in spans])

    def _replaced(self, found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        if name is None:
            return ""
        return str(name) if begin or end else f"{BEGIN}{self._special[name][0]}{END}"

    def apart(self, text: str, spans: Sequence[tuple[int, int]]) -> Spanned:
        """A text in which all names are text. `BadRecord` where the model itself makes a special token of one (Unigram may)."""
        if self._apart is None:
            self._apart = self._made_apart()
        encoding = self._apart.encode(text, add_special_tokens=False)
        ids = frozenset(encoding.ids)
        for name, (number, _) in self._special.items():
            if number in ids:
                raise BadRecord(f"this tokenizer has no other tokens for the text {name!r} than the special token of that name")
        return Spanned(text, spans, encoding)

    def encode(self, several: Sequence[Spanned], head: Sequence[int] = (), tail: Sequence[int] = ()) -> Tokens:
        """Ids and masks of texts, each between the tokens `head` (no loss) and `tail` (loss)."""
        plain = iter(self._plain.encode_batch([one.text for one in several if one.apart is None], add_special_tokens=False))
        encodings = [next(plain) if one.apart is None else one.apart for one in several]
        return _tokens_of(encodings, several, self._aliases, head, tail)

    def _made_apart(self) -> Any:
        import tokenizers

        clone = tokenizers.Tokenizer.from_str(self._text)
        clone.encode_special_tokens = True
        for number, token in self._special.values():
            alias = f"{BEGIN}{number}{END}"
            sides = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word}
            clone.add_tokens([tokenizers.AddedToken(alias, special=False, normalized=False, **sides)])
            self._aliases[int(clone.token_to_id(alias) or 0)] = number
        return clone
