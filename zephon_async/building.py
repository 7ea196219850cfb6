"""How a recipe grows: one method an operator, which adds it and gives the pipeline back.

Each method names its operator in `operators`, where its settings are told; there is nothing else to it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from zephon_async.checks import checked, one_of, whole
from zephon_async.engine import CHOSEN
from zephon_async.errors import RecipeError
from zephon_async.io import copied
from zephon_async.operators import (
    TOKENIZER_FILES,
    Accumulate,
    DecodeAudio,
    DecodeImage,
    DecodeText,
    DecodeVideo,
    Dedup,
    EnsureMixture,
    ExpandChat,
    ExpandImages,
    Filter,
    FilterBatches,
    FilterLength,
    FilterRegex,
    FlatMap,
    Map,
    MapBatches,
    Operator,
    PackFlat,
    PackSequences,
    Refer,
    Shuffle,
    Tokenize,
    TokenizeChat,
    TokenizeCompletion,
)
from zephon_async.reference_names import ReferenceNames, Step, in_our_words, step
from zephon_async.work import WorkSource, target_of


class Builder(ReferenceNames):
    """A source, operators in their order, and the rows of a microbatch at the end (None: not said yet)."""

    def __init__(self, source: WorkSource) -> None:
        self._source = source
        self._operators: list[Operator] = []
        self._steps: list[Step] = []
        self._batch: int | None = None

    def _still_open(self, what: str) -> None:
        """Refuse what comes when the pipeline has been started."""
        raise NotImplementedError

    @step
    def apply(self, operator: Operator) -> Self:
        """Add an operator of one's own: stateless, an accumulator, or both."""
        if isinstance(operator, type) or not isinstance(operator, Operator):
            raise RecipeError(f"apply() takes an operator, an instance such as apply(YourOperator()), not {operator!r:.80}")
        self._still_open(operator.name)
        if self._batch is not None:
            raise RecipeError(f"{operator.name}() comes after batch(): batch must be the last operator")
        if not operator.stateless and not operator.serial:
            raise RecipeError(f"{operator.name} overrides neither apply nor accumulator, so it does nothing")
        self._operators.append(operator)
        return self

    @step
    def map(self, fn: Callable[..., Any], **settings: Any) -> Self:
        """Apply `fn(record: dict) -> dict` to every record; it may be `async def`. See `operators.Map`."""
        return self._add(Map, fn, **settings)

    @step
    def filter(self, fn: Callable[..., Any], **settings: Any) -> Self:
        """Keep the records for which `fn(record: dict)` is true; it may be `async def`. See `operators.Filter`."""
        return self._add(Filter, fn, **settings)

    @step
    def filter_length(self, field: str, **settings: Any) -> Self:
        """Keep rows whose `field` has a length from `min=` to `max=`. See `operators.FilterLength`."""
        return self._add(FilterLength, field, **settings)

    @step
    def filter_regex(self, field: str, pattern: str, **settings: Any) -> Self:
        """Keep rows in whose `field` a regular expression is found; `keep=False`: the others. See `operators.FilterRegex`."""
        return self._add(FilterRegex, field, pattern, **settings)

    @step
    def filter_batches(self, fn: Callable[..., Any], **settings: Any) -> Self:
        """Keep the rows for which `fn(batch: pa.RecordBatch)` gives True in its mask. See `operators.FilterBatches`."""
        return self._add(FilterBatches, fn, **settings)

    @step
    def dedup(self, fields: str | Sequence[str], **settings: Any) -> Self:
        """Leave out rows that are equal to one before, among each `window=` rows of a lane. See `operators.Dedup`."""
        return self._add(Dedup, fields, **settings)

    @step
    def flat_map(self, fn: Callable[..., Any], **settings: Any) -> Self:
        """Turn every record into none, one or more: `fn(record: dict) -> iterable of dicts`. See `operators.FlatMap`."""
        return self._add(FlatMap, fn, **settings)

    @step
    def map_batches(self, fn: Callable[..., Any], **settings: Any) -> Self:
        """Apply `fn(batch: pa.RecordBatch) -> pa.RecordBatch`, of `rows=` rows exactly where given. See `operators.MapBatches`."""
        return self._add(MapBatches, fn, **settings)

    @step
    def decode_text(self, fields: Sequence[str] = ("text",), **settings: Any) -> Self:
        """Decode bytes to text. See `operators.DecodeText`."""
        return self._add(DecodeText, fields, **settings)

    @step
    def decode_image(self, field: str = "image", *, seed: int | None = None, **settings: Any) -> Self:
        """Decode JPEG, PNG and WebP to pixels; the seed is the source's when not given. See `operators.DecodeImage`."""
        return self._add(DecodeImage, field, seed=self._source.seed if seed is None else seed, **settings)

    @step
    def decode_audio(self, field: str = "audio", **settings: Any) -> Self:
        """Decode audio to samples of one rate. See `operators.DecodeAudio`."""
        return self._add(DecodeAudio, field, **settings)

    @step
    def decode_video(self, field: str = "video", *, seed: int | None = None, **settings: Any) -> Self:
        """Decode frames of videos; the seed is the source's when not given. See `operators.DecodeVideo`."""
        return self._add(DecodeVideo, field, seed=self._source.seed if seed is None else seed, **settings)

    @step
    def expand_images(self, field: str = "images", **settings: Any) -> Self:
        """Repeat the placeholder token of every image as often as it has visual tokens. See `operators.ExpandImages`."""
        return self._add(ExpandImages, field, **settings)

    @step
    def tokenize(self, tokenizer: Any = None, *, storage_options: Mapping[str, Any] | None = None, **settings: Any) -> Self:
        """Turn a text column into `input_ids`. See `operators.Tokenize`.

        tokenizer, tokenizer_id: also the URL of a tokenizer.json or of the folder that has one, read with `storage_options`.
        """
        return self._tokenize(Tokenize, tokenizer, storage_options, settings)

    @step
    def tokenize_chat(self, tokenizer: Any = None, *, storage_options: Mapping[str, Any] | None = None, **settings: Any) -> Self:
        """Turn conversations into `input_ids` and `loss_mask`; preference pairs too. See `operators.TokenizeChat`.

        tokenizer, tokenizer_id, storage_options: as for `tokenize`.
        """
        return self._tokenize(TokenizeChat, tokenizer, storage_options, settings)

    @step
    def tokenize_completion(
        self, tokenizer: Any = None, *, storage_options: Mapping[str, Any] | None = None, **settings: Any
    ) -> Self:
        """Turn prompts and completions into `input_ids` and `loss_mask`. See `operators.TokenizeCompletion`.

        tokenizer, tokenizer_id, storage_options: as for `tokenize`.
        """
        return self._tokenize(TokenizeCompletion, tokenizer, storage_options, settings)

    @step
    def expand_chat(self, field: str = "messages", **settings: Any) -> Self:
        """Make a record of every answered turn of a conversation. See `operators.ExpandChat`."""
        return self._add(ExpandChat, field, **settings)

    @step
    def ensure_mixture(self, *, target: Any = None, **settings: Any) -> Self:
        """Reorder documents so that the tokens of every window are mixed as `target` says: a weight for each dataset by name, by
        default the source's. See `operators.EnsureMixture`."""
        if settings.get("on_overflow") == "drop" and getattr(self._source, "on_exhausted", "") == "drop_out":
            raise RecipeError(
                "ensure_mixture(on_overflow='drop') of a source with on_exhausted='drop_out': once a dataset has ended, the others "
                "are ahead of it, and nearly all that comes would be dropped; use on_overflow='emit', or another on_exhausted"
            )
        return self._add(EnsureMixture, target_of(self._source, target), **settings)

    @step
    def refer(self, fields: Sequence[str] = ("image",)) -> Self:
        """Refer to columns of bytes, or of lists of bytes, instead of copying them from here on. See `operators.Refer`."""
        return self._add(Refer, fields)

    @step
    def pack_flat(self, max_length: int, **settings: Any) -> Self:
        """Pack token documents into rows of `max_length` tokens. See `operators.PackFlat`."""
        return self._add(PackFlat, max_length, **settings)

    @step
    def pack_sequences(self, max_length: int, **settings: Any) -> Self:
        """Pack token documents into lists of documents of up to `max_length` tokens. See `operators.PackSequences`."""
        return self._add(PackSequences, max_length, **settings)

    @step
    def shuffle(self, buffer_size: int = 1024, seed: int | None = None, **settings: Any) -> Self:
        """Permute every window of `buffer_size` rows, in runs of `block_size=` rows; the seed is the source's when not given. See
        `operators.Shuffle`."""
        return self._add(Shuffle, buffer_size, seed=self._source.seed if seed is None else seed, **settings)

    @step
    def accumulate(
        self, init: Callable[[], Any], push: Callable[..., Any], flush: Callable[..., Any] | None = None, **settings: Any
    ) -> Self:
        """Keep a state of one's own per lane. See `operators.Accumulate`."""
        return self._add(Accumulate, init, push, flush, **settings)

    @step
    def batch(self, microbatch_size: int) -> Self:
        """End the pipeline: microbatches of `microbatch_size` rows."""
        self._still_open("batch")
        if self._batch is not None:
            raise RecipeError("batch() was called twice")
        self._batch = whole("microbatch_size", microbatch_size, 1)
        return self

    def _tokenize(
        self, operator: type[Operator], tokenizer: Any, options: Mapping[str, Any] | None, settings: dict[str, Any]
    ) -> Self:
        """Add an operator with a tokenizer, which may be a URL."""
        given = settings.get("tokenizer_id") if tokenizer is None else tokenizer
        if not isinstance(given, str) or "://" not in given:
            if options:
                raise RecipeError(f"{operator.name}: storage_options ({', '.join(options)}) are for URLs, and none is given")
            return self._add(operator, tokenizer, **settings)
        with copied(given, options or {}, TOKENIZER_FILES) as path:
            try:
                named = {"tokenizer": path} if tokenizer is not None else {"tokenizer_id": path}
                return self._add(operator, **(settings | named))
            except RecipeError as error:
                raise RecipeError(str(error).replace(path, given)) from error.__cause__

    def _add(self, operator: type[Operator], *given: Any, **settings: Any) -> Self:
        settings = in_our_words(operator.name, settings)
        runner = settings.pop("runner", None)
        made = checked(operator.name, operator)(*given, **settings)
        if runner is not None:
            one_of(f"{operator.name}: runner", runner, CHOSEN)
            made.runner = runner
        return self.apply(made)
