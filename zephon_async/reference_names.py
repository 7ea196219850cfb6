"""The names of the reference library, `zephon`: what each is here.

`SETTINGS` is a table of the settings of methods that both have; `ReferenceNames` has the methods that only the reference has. Each
does what it did there, or is accepted where it can only mean what is done here anyway, or is refused with what there is instead.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from copy import copy
from functools import wraps
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, cast

from zephon_async.checks import checked, checks_call, flag, writable
from zephon_async.errors import RecipeError
from zephon_async.operators import Accumulate, Map, MapTransform, Operator, ValidationReport

F = TypeVar("F", bound=Callable[..., Any])
_log = logging.getLogger("zephon_async")
_HERE_ANYWAY = object()


class Meant(NamedTuple):
    """What a setting is here: `ours`, and what some of its values are; other values are the same, or refused with an `instead`."""

    ours: str
    values: Mapping[Any, Any] = MappingProxyType({})
    instead: str = ""


def _anyway(*values: Any, instead: str) -> Meant:
    """A setting that can only be what is done here anyway."""
    return Meant("", dict.fromkeys(values, _HERE_ANYWAY), instead)


_PLACEMENT = _anyway("local", "auto", None, instead="runner= says where an operator runs")
_UPSTREAM = _anyway(False, instead="keep_columns=[...] names the columns to keep")
_PACK = {
    "max_sequences_per_bin": Meant("max_sequences_per_row"),
    "tokens_field": Meant("field", {"auto": _HERE_ANYWAY}),
    "drop_oversized": Meant("on_long", {True: "drop", False: "error"}, "on_long= says what becomes of long documents"),
    "homogeneity": Meant("homogeneity", {"full": "dataset"}),
    "length_fn": _anyway(None, instead="lengths are those of the lists in field=; cut them with map() before"),
    "min_sequence_length": _anyway(1, instead="a row is closed when it is full, or when none of num_bins rows has room"),
    "shuffle_strategy": _anyway(None, instead="shuffle() behind it permutes rows"),
    "shuffle_seed": _anyway(None, instead="shuffle(seed=) behind it permutes rows"),
    "flush_strategy": _anyway("fullest", instead="when no row has room, the fullest goes out"),
    "candidate_pool_size": _anyway(None, 1024, instead="best_fit_wrap chooses among 1,024 pieces"),
    "max_candidate_age": _anyway(None, 8 * 1024, instead="a piece waits for 8,192 others at most"),
}

SETTINGS: Mapping[str, Mapping[str, Meant]] = {
    "tokenize": {
        "missing_field": Meant("on_null", {"error": "error", "empty": "empty"}, "on_null= is 'error', 'skip' or 'empty'"),
        "truncation": Meant("on_long", {True: "truncate", False: _HERE_ANYWAY}, "on_long='truncate' cuts at max_length"),
        "split_long_samples": Meant("on_long", {True: "split", False: _HERE_ANYWAY}, "on_long='split' makes several rows"),
        "bos_token_id": Meant("bos_token"),
        "eos_token_id": Meant("eos_token"),
        "add_attention_mask": _anyway(
            False, instead="rows are not padded, so it would be all ones; to_training(return_padding_mask=True) tells the padding"
        ),
        "padding": _anyway(
            False, "do_not_pad", instead="pack_flat(max_length) makes rows of one length, and batches may be ragged"
        ),
        "return_tensors": _anyway(None, instead="batch.to_training() gives tensors"),
        "use_fast": _anyway(True, instead="there are fast tokenizers only"),
        "preserve_upstream_payload": _UPSTREAM,
    },
    "tokenize_chat": {
        "loss_on_last_turn_only": Meant(
            "loss_scope", {True: "last_assistant", False: "all_assistant"}, "loss_scope= says which turns have a loss"
        ),
        "loss_scope": Meant("loss_scope", {"last_span": "last_assistant", None: _HERE_ANYWAY}),
        "apply_chat_template": _anyway(True, instead="tokenize_completion() takes a prompt and a completion without a template"),
        "mask_field_out": _anyway("loss_mask", instead="batch.to_training(rename=...) renames"),
        "eos_token": _anyway(None, instead="what stands behind a turn is the template's: chat_template=, chat_template_kwargs="),
        "preserve_upstream_payload": _UPSTREAM,
    },
    "decode_text": {"max_batch": _anyway(None, 128, instead="options(chunk_rows=) says how many rows are worked at once")},
    "pack_flat": {
        **_PACK,
        "pad_token_id": Meant("pad_id"),
        "emit_positions": _anyway(True, False, instead="batch.to_training() makes positions"),
    },
    "pack_sequences": {
        **_PACK,
        "pack_payloads": _anyway("keep_list", instead="batch.columns gives Arrow; map_batches() makes something else of it"),
    },
    "shuffle": {
        "algorithm": _anyway("block", instead="it permutes windows of buffer_size rows, which need no flush"),
        "warmup_growth": _anyway(None, instead="windows are of one size from the start; buffer_size= says which"),
    },
    "ensure_mixture": {
        "weight_by": _anyway("auto", "tokens", instead="it is mixed by tokens; the source's unit='samples' mixes by samples"),
        "drain_target_ratio": _anyway(None, instead="what is too much goes out one by one: buffer_tokens="),
        "obsolete_drain_rate": _anyway(None, instead="what is left comes out in order at the end of a segment"),
        "warn_tolerance": _anyway(None, instead="what goes out off target is counted: statistics()"),
    },
}


def in_our_words(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method under the names that they have here; `RecipeError` for what is not done here."""
    chosen, known = dict[str, Any](), {"placement": _PLACEMENT, **SETTINGS.get(method, {})}
    for name, value in settings.items():
        meant = known.get(name, Meant(name))
        ours = meant.values.get(value, value) if isinstance(value, Hashable) else value
        if meant.instead and ours is value and not (isinstance(value, Hashable) and value in meant.values):
            raise RecipeError(f"{method}(): {name}={value!r:.80} is not done here: {meant.instead}")
        if ours is _HERE_ANYWAY:
            continue
        if meant.ours in chosen:
            raise RecipeError(f"{method}() was given {meant.ours!r} twice: {name!r} is another name of it")
        chosen[meant.ours] = ours
    return chosen


class Step(NamedTuple):
    """A call of a builder method, as the user made it."""

    method: str
    given: tuple[Any, ...]
    settings: Mapping[str, Any]


def step(method: F) -> F:
    """Decorate a method that adds to a pipeline: a call that cannot be made is refused, one that was made is remembered."""
    call = checks_call(method)

    @wraps(method)
    def remembered(pipeline: Any, *given: Any, **settings: Any) -> Any:
        before = len(pipeline._steps)
        call(pipeline, *given, **settings)
        pipeline._steps[before:] = [Step(method.__name__, given, settings)]  # not the calls that it made of its own
        return pipeline

    remembered.is_step = True  # type: ignore[attr-defined]
    return cast(F, remembered)


class ReferenceNames:
    """The methods that only the reference has."""

    def apply(self, operator: Operator) -> Self:
        """Add an operator."""
        raise NotImplementedError

    def _add(self, operator: type[Operator], *given: Any, **settings: Any) -> Self:
        """Make an operator and add it."""
        raise NotImplementedError

    @step
    def map_transform(
        self, fn: Callable[..., Any], drop_none: bool = True, parallelism: int | None = None, **settings: Any
    ) -> Self:
        """`map`, in which a record for which `fn` gives None is left out (drop_none=True) and counted. Settings: as for `map`."""
        return self._add(
            MapTransform if flag("map_transform: drop_none", drop_none) else Map, fn, parallelism=parallelism, **settings
        )

    def map_batch(self, *given: Any, **settings: Any) -> Self:
        """Refused: see `map_batches`."""
        raise RecipeError(
            "map_batch() is not here: use map_batches(fn, rows=n) before batch(), which takes Arrow batches of n rows, "
            "or batch.to_training(collate=fn) on what comes out"
        )

    @step
    def stateful_transform(
        self,
        name: str,
        init_state: Callable[[], Any],
        push: Callable[..., Any],
        flush: Callable[..., Any] | None = None,
        should_flush: None = None,
        transform: None = None,
        parallelism: int | None = None,
        indexable: bool = False,
        preserves_cursor_order: bool = True,
        **settings: Any,
    ) -> Self:
        """`accumulate(init_state, push, flush)` under a name of one's own: see `operators.Accumulate`."""
        _refuse("stateful_transform", "should_flush", should_flush, "push gives out what is complete, when it is")
        _refuse("stateful_transform", "transform", transform, "put map(fn) behind it")
        _refuse("stateful_transform", "parallelism", None if parallelism == 1 else parallelism, "there is one state per lane")
        _refuse("stateful_transform", "indexable", indexable or None, "rows come in order, by for and async for")
        return self.apply(_called(name, checked("stateful_transform", Accumulate)(init_state, push, flush, **settings)))

    @step
    def add_op(self, op: Operator | str, name: str | None = None, *, process_one: Any = None, **settings: Any) -> Self:
        """`apply(op)`; or, of a name and `process_one`, a function of one record, `map_transform(process_one)` under that name."""
        if isinstance(op, Operator):
            return self.apply(op if name is None else _called(name, copy(op)))
        _refuse("add_op", "process_many", settings.pop("process_many", None), "give process_one=, or use map_batches(fn)")
        _refuse(
            "add_op",
            "accumulator",
            settings.pop("accumulator", None),
            "use accumulate(init, push, flush), or add_op(YourOperator())",
        )
        for hint in ("preserves_cursor_order", "calibration_replayable", "batch_shape_sensitive", "indexable"):
            settings.pop(hint, None)  # what is added so is row-wise, and keeps the order
        _refuse("add_op", "validation_samples", settings.pop("validation_samples", None), "use check_operator(fn, samples)")
        _refuse("add_op", "requires_serial_state", settings.pop("requires_serial_state", None) or None, "use accumulate(...)")
        if process_one is None:
            raise RecipeError("add_op() takes an operator, such as add_op(YourOperator()), or a name and process_one=fn")
        return self.apply(_called(op, checked("add_op", MapTransform)(process_one, **settings)))

    @step
    def fetch(self, parallelism: int | None = None, max_batch: int | None = None) -> Self:
        """A hint about speed, which is not needed."""
        return self._hinted(
            "fetch", "reads are as many at once as the memory budget has room for; options(read_ahead=) bounds them"
        )

    fetch_parallelism = fetch

    @step
    def prefetch(self, buffer_size: int = 1024, parallelism: int | None = None, placement: str = "local") -> Self:
        """A hint about speed, which is not needed."""
        in_our_words("prefetch", {"placement": placement})
        return self._hinted("prefetch", "row blocks are read ahead as the memory budget has room; options(prefetch=, read_ahead=)")

    def _hinted(self, method: str, instead: str) -> Self:
        _log.info("%s() changes nothing: %s", method, instead)
        return self

    def materialize(self) -> Self:
        """Nothing: rows are always there when a batch is."""
        return self

    def preflight_tokenizers(self, strict: bool = True) -> ValidationReport:
        """Nothing is left to be loaded: `tokenize` and its siblings have loaded their tokenizers when they were called, or raised.

        So the report is empty, and nothing can be told that is not strict.
        """
        return ValidationReport(())


def _refuse(method: str, name: str, value: Any, instead: str) -> None:
    if value is not None:
        raise RecipeError(f"{method}(): {name}= is not here: {instead}")


def _called(name: str, operator: Operator) -> Operator:
    """An operator under a name of the user's."""
    if not isinstance(name, str) or not name:
        raise RecipeError(f"the name of an operator must be a text, not {name!r:.80}")
    writable("the name of an operator", name)
    operator.name = name
    return operator
