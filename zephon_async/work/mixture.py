"""Mixtures of datasets: of fixed weights, and of weights that change as a schedule says."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

from zephon_async.checks import checks_call, nearest, one_of, whole, whole_or_none
from zephon_async.errors import RecipeError
from zephon_async.io import Catalog, Dataset
from zephon_async.lanes import OnExhausted, Rule
from zephon_async.work.base import Plan, Unit, WorkSource
from zephon_async.work.estimation import TokenEstimation
from zephon_async.work.plan import DatasetPlan, Pieces
from zephon_async.work.schedule import Changes, Course, MixtureSchedule
from zephon_async.work.weights import MixtureSpec, Weights


class _MixtureWorkSource:
    """What mixtures of datasets have in common: all but their weights."""

    def __init__(
        self,
        datasets: Iterable[Dataset],
        names: Sequence[str],
        drawn: Collection[str],
        token_estimation: TokenEstimation | None,
        unit: Unit | None,
        seed: int,
        shuffle: Pieces | bool,
        epochs: int | None,
        on_exhausted: OnExhausted,
        max_repeats: int | None,
    ) -> None:
        """names: that the mixture gives a weight. drawn: those that have one above 0."""
        everything = sorted(_datasets(datasets), key=lambda dataset: dataset.name.encode())
        _check_names([dataset.name for dataset in everything], names)
        self.everything = tuple(everything)
        """All datasets that were given, also those without a weight."""
        self._datasets = tuple(dataset for dataset in everything if dataset.name in drawn)
        if unit is not None:
            one_of("unit", unit, get_args(Unit))
        one_of("on_exhausted", on_exhausted, get_args(OnExhausted))
        epochs = whole_or_none("epochs", epochs, instead=", or None for data without an end")
        max_repeats = whole_or_none("max_repeats", max_repeats, 0)
        if max_repeats is not None and (on_exhausted != "repeat" or epochs is None):
            raise RecipeError(f"max_repeats={max_repeats} goes with on_exhausted='repeat' and finite epochs")
        if token_estimation is not None and not isinstance(token_estimation, TokenEstimation):
            raise RecipeError(f"token_estimation is {token_estimation!r}: give a TokenEstimation, such as TokenEstimation(0.25)")
        if token_estimation is not None:
            token_estimation.check_names(names)
        self.unit: Unit = unit or ("tokens" if token_estimation is not None else "samples")
        if self.unit == "tokens" and token_estimation is None:
            token_estimation = TokenEstimation()
        self.token_estimation = token_estimation if self.unit == "tokens" else None
        self.seed, self.shuffle = whole("seed", seed, instead=", so that the run can be repeated"), _pieces(shuffle)
        self.epochs, self.on_exhausted, self.max_repeats = epochs, on_exhausted, max_repeats

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets with a weight above 0, in the byte order of their names."""
        return self._datasets

    @property
    def finite(self) -> bool:
        """Whether the data ends."""
        return self.epochs is not None

    def settings(self) -> dict[str, Any]:
        """What decides the data, as plain values, but for the weights."""
        return {
            "unit": self.unit,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epochs": self.epochs,
            "on_exhausted": self.on_exhausted,
            "max_repeats": self.max_repeats,
            "tokens per byte": self._pins(),  # those that are measured are recorded with the run
        }

    def _pins(self) -> dict[str, tuple[int, int]] | None:
        """The ratios that are pinned, by dataset."""
        if self.token_estimation is None:
            return None
        found = {dataset.name: self.token_estimation.pinned(dataset.name) for dataset in self._datasets}
        return {name: pair for name, pair in found.items() if pair is not None} or None

    def _plan(
        self,
        catalogs: Sequence[Catalog],
        ratios: Mapping[str, tuple[int, int]],
        lanes: int,
        weights: tuple[int, ...],
        changes: Changes | None = None,
    ) -> Plan:
        plans = tuple(DatasetPlan(catalog, self.seed, self.shuffle, lanes) for catalog in catalogs)
        pairs = tuple(ratios.get(catalog.dataset, (1, 1)) for catalog in catalogs)
        return Plan(plans, weights, pairs, Rule(self.epochs, self.on_exhausted, self.max_repeats, turn=lanes), changes)


@checks_call
class StaticMixtureWorkSource(_MixtureWorkSource):
    """Datasets drawn in fixed proportions.

    datasets: of different names.
    mixture: a weight for each dataset by name, in any scale; 0 leaves it out.
    token_estimation: how tokens per byte are found where weights are ratios of tokens.
    unit: what the weights are ratios of: "tokens", "bytes" or "samples". None: tokens where an estimation is given, else samples.
    seed: every dataset gets an order of its own from it.
    shuffle: what is permuted over an epoch. "units" (or True): units, and rows inside row blocks, which reads everything once in
        long pieces. "blocks": row blocks instead of units (of formats that are read in order still units), and the rows in them;
        it takes some 40 bytes of memory a row block. "rows": all rows, as if drawn from a hat; a row costs a tenth of a millisecond
        or two of one core, and the decoding of its row block where that is not in memory: for data that fits there, or has small
        ones (`Dataset.with_sizes(block_bytes=)`). False: catalog order. `work.simulate` tells what comes of each.
    epochs: passes over the data; None never ends.
    on_exhausted: what happens when a dataset has given its epochs: "repeat" begins it again until the longest is through, "stop"
        ends all, "drop_out" lets the others go on.
    max_repeats: for "repeat", how many further passes a dataset may make before it drops out.

    Raises `RecipeError` for what cannot be meant.
    """

    def __init__(
        self,
        datasets: Iterable[Dataset],
        mixture: MixtureSpec | Weights,
        *,
        token_estimation: TokenEstimation | None = None,
        unit: Unit | None = None,
        seed: int = 0,
        shuffle: Pieces | bool = "units",
        epochs: int | None = 1,
        on_exhausted: OnExhausted = "repeat",
        max_repeats: int | None = None,
    ) -> None:
        self.mixture = mixture if isinstance(mixture, MixtureSpec) else MixtureSpec(mixture)
        self._weights = self.mixture.exact()
        common = (token_estimation, unit, seed, shuffle, epochs, on_exhausted, max_repeats)
        super().__init__(datasets, self.mixture.names, self._weights, *common)

    @property
    def weights(self) -> tuple[int, ...]:
        """The weight of each of `datasets`; their sum is 2**32."""
        return tuple(self._weights[dataset.name] for dataset in self._datasets)

    def settings(self) -> dict[str, Any]:
        """What decides the data, as plain values."""
        return {"weights": dict(self._weights), **super().settings()}

    def plan(self, catalogs: Sequence[Catalog], ratios: Mapping[str, tuple[int, int]], lanes: int) -> Plan:
        """The plan over `lanes`."""
        return self._plan(catalogs, ratios, lanes, self.weights)


@checks_call
class ScheduledMixtureWorkSource(_MixtureWorkSource):
    """Datasets drawn in proportions that change as a schedule says.

    schedule: the weights, by how far the run has come.

    All other arguments are those of `StaticMixtureWorkSource`. A dataset counts in `epochs` and `on_exhausted` while it has a
    weight, or will have one later; a run ends where no dataset that has a weight can go on.

    Raises `RecipeError` for what cannot be meant.
    """

    def __init__(
        self,
        datasets: Iterable[Dataset],
        schedule: MixtureSchedule,
        *,
        token_estimation: TokenEstimation | None = None,
        unit: Unit | None = None,
        seed: int = 0,
        shuffle: Pieces | bool = "units",
        epochs: int | None = 1,
        on_exhausted: OnExhausted = "repeat",
        max_repeats: int | None = None,
    ) -> None:
        if not isinstance(schedule, MixtureSchedule):
            raise RecipeError(f"schedule is {schedule!r:.80}: give a MixtureSchedule, or use StaticMixtureWorkSource")
        self.schedule = schedule
        common = (token_estimation, unit, seed, shuffle, epochs, on_exhausted, max_repeats)
        drawn = {name for _, spec in schedule.points for name in spec.exact()}
        super().__init__(datasets, schedule.names, drawn, *common)
        if schedule.by not in ("samples", self.unit):
            raise RecipeError(
                f"the schedule counts {schedule.by}, but sizes of this source are {self.unit}: use "
                f"MixtureSchedule(by={self.unit!r}) or by='samples', or give the source unit={schedule.by!r}"
            )

    def settings(self) -> dict[str, Any]:
        """What decides the data, as plain values."""
        return {"schedule": self.schedule.settings(), **super().settings()}

    def plan(self, catalogs: Sequence[Catalog], ratios: Mapping[str, tuple[int, int]], lanes: int) -> Plan:
        """The plan over `lanes`."""
        course = Course.of(self.schedule, [dataset.name for dataset in self._datasets])
        changes = Changes(course, self.schedule.by, self.schedule.change_rows)
        return self._plan(catalogs, ratios, lanes, course.at(0), changes)


def target_of(source: WorkSource, target: MixtureSpec | Weights | None) -> dict[str, int]:
    """Whole weights of the datasets of a source, in their order, of what was given as a target; None: the source's own."""
    names = [dataset.name for dataset in source.datasets]
    if target is None:
        weights = getattr(source, "weights", None)
        if weights is None:
            raise RecipeError(f"ensure_mixture: {type(source).__name__} tells no weights: give target=")
        return dict(zip(names, weights, strict=True))
    spec = target if isinstance(target, MixtureSpec) else MixtureSpec(target)
    if unknown := [name for name in spec.names if name not in names]:
        why = "is no dataset that the source draws from"
        raise RecipeError(f"ensure_mixture: target names {unknown[0]!r}, which {why}; {nearest(unknown[0], names)}")
    exact = spec.exact()
    if missing := [name for name in names if name not in exact]:
        raise RecipeError(
            f"ensure_mixture: target gives {missing[0]!r} no share, but the source draws from it; give it one, or leave it out of "
            "the source's mixture"
        )
    return exact


def _pieces(shuffle: Any) -> Pieces | Literal[False]:
    if isinstance(shuffle, bool):
        return "units" if shuffle else False
    one_of("shuffle", shuffle, get_args(Pieces))
    return cast(Pieces, shuffle)


def _datasets(given: Any) -> list[Dataset]:
    if isinstance(given, Dataset):
        raise RecipeError(f"datasets is one dataset, {given.name!r}: put it into a list")
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for one in listed:
        if not isinstance(one, Dataset):
            raise RecipeError(f"datasets must be a list of datasets, such as [Dataset.from_path(name, path)], not of {one!r:.80}")
    return listed


def _check_names(datasets: Sequence[str], mixture: Sequence[str]) -> None:
    if not datasets:
        raise RecipeError("there is no dataset: give at least one")
    if twice := sorted({name for name in datasets if datasets.count(name) > 1}):
        raise RecipeError(f"two datasets are named {twice[0]!r}: names must differ")
    if unknown := [name for name in mixture if name not in datasets]:
        raise RecipeError(f"the mixture names {unknown[0]!r}, which is no dataset; {nearest(unknown[0], datasets)}")
    if missing := [name for name in datasets if name not in mixture]:
        raise RecipeError(f"the mixture gives no weight to {missing[0]!r}; give it one (0 leaves it out)")
