"""`explain()`: the compiled plan in text, with what can be foreseen."""

from zephon_async.engine import Budget, Chain, Prepared
from zephon_async.io import FROM_START, Catalog
from zephon_async.options import Options
from zephon_async.work import WorkSource

_SHOWN = 20  # names of files that are ignored


def explain(prepared: Prepared, chain: Chain, options: Options, source: WorkSource) -> str:
    """Datasets, stages, who works what, how far the first microbatch is, what a restore costs, and what is held."""
    t = prepared.known.topology
    lines = [f"mixture by {source.unit}, seed {source.seed}, {'ends' if source.finite else 'endless'}"]
    weights = sum(prepared.plan.weights)
    plans = zip(source.datasets, prepared.catalogs, prepared.plan.weights, prepared.plan.ratios, strict=True)
    for dataset, catalog, weight, (tokens, size) in plans:
        rows = _some(catalog.rows, "row") if catalog.rows is not None else "rows not counted"
        ratio = f", {tokens / size:.4f} tokens per byte" if source.unit == "tokens" else ""
        lines.append(
            f"  {catalog.dataset}: {weight / weights:.2%}, {catalog.format}, {_some(len(catalog.shards), 'shard')}, "
            f"{_some(len(catalog.units), 'unit')}, {_some(catalog.bytes, 'byte')}, {rows}{ratio}"
            + ", fetched"
            * dataset.store.remote
        )
        lines += _from_start(catalog)
        if catalog.lost:
            lines.append(
                f"    left out {_some(len(catalog.lost), 'shard')} that {'is' if len(catalog.lost) == 1 else 'are'} broken"
            )
        if catalog.ignored:
            shown = ", ".join(catalog.ignored[:_SHOWN]) + (", ..." if len(catalog.ignored) > _SHOWN else "")
            lines.append(f"    ignored {len(catalog.ignored)}: {shown}")
    lines += [f"  the mixture changes: {changes}"] if (changes := prepared.plan.changes) is not None else []
    lines.append("columns read: " + ", ".join(f"{f.name}: {f.type}" for f in prepared.schema))
    lines.append("stages of a lane")
    for link in chain.links:
        for stage in link.stages:
            limit = f", at most {stage.parallelism} at once" if stage.parallelism else ""
            runner, why = stage.placement
            lines.append(f"  {stage.name} on {runner}{limit}, as {why}")
        lines.append(f"  {link.name}, serial")
    worked = f"lane {t.owned.start}" if len(t.owned) == 1 else f"lanes {t.owned.start} to {t.owned.stop - 1}"
    lines.append(
        f"a step: {_some(t.microbatches_per_step, 'microbatch', 'microbatches')} of {_some(chain.microbatch_size, 'row')} from "
        f"{_some(t.lanes, 'lane')}; rank {t.dp_rank} of {t.dp_size} yields {t.per_rank} and works {worked}"
        + (f", {t.shared} of them together with another rank" if t.shared else "")
    )
    lines.append(f"to its first microbatch a lane draws {_rows_to_first(prepared, chain, options)}")
    lines.append(f"a restore makes again, for each lane, {_rows_again(prepared, chain, options)}")
    budget, lanes = prepared.budget, _some(len(t.owned), "lane")
    lines += [
        f"memory: {options.budget_bytes:,} bytes, divided into {budget.share_bytes:,} x {lanes} of this rank, "
        f"{budget.cache_bytes:,} for row blocks that are kept or read ahead, and {budget.open_bytes:,} for units that stand open",
        *_fetched(budget),
        f"  a lane must be able to hold {budget.need.bytes:,}: {budget.need} (by rows of {budget.need.row_bytes:,} bytes)",
    ]
    return "\n".join(lines)


def _from_start(catalog: Catalog) -> list[str]:
    """What it costs to enter a unit that is read from its start, where there are any."""
    inside = catalog.units[catalog.units["entry"] == FROM_START]
    if not len(inside):
        return []
    largest = int((inside["stop"] - inside["start"]).max())
    costs = f"to enter one again, as after a restore, costs at most one pass over it, of {largest:,} bytes for the largest"
    return [f"    {_some(len(inside), 'unit')} read from the start: {costs}"]


def _fetched(budget: Budget) -> list[str]:
    """What is held of remote shards, where there are any."""
    if not budget.fetched_bytes:
        return []
    return [
        f"  of remote shards: {budget.coming_bytes:,} for what is coming, {budget.fetched_bytes:,} for what waits to be decoded "
        f"(more of it waits on the disk), {budget.remembered_bytes:,} for footers and the like, and as many to read ahead of units "
        "that are read from the start"
    ]


def _rows_to_first(prepared: Prepared, chain: Chain, options: Options) -> str:
    """What a lane draws until its first microbatch is whole, in words."""
    rows, about = chain.microbatch_size, ""
    for operator in reversed(chain.accumulators):
        taken = operator.takes_rows(rows, prepared.row_tokens)
        if taken is None:
            flushed = f"; it is flushed every {options.flush_every:,} rows" if operator.needs_flush else ""
            return f"as many rows as {operator.name} needs to give {rows:,}{flushed}"
        about = "about " if operator.takes_rows(rows, None) is None else about
        rows = taken
    return f"{about}{_some(rows, 'row')}, if operators leave none out and add none"


def _rows_again(prepared: Prepared, chain: Chain, options: Options) -> str:
    """What a lane draws once more after a restore, in words: windows, of which each may begin inside one before it, and a chunk."""
    rows, about, segment = 0, "", 0
    for link in reversed(chain.links):
        for _, operator in reversed(link.accumulators):
            taken = operator.takes_rows(rows, prepared.row_tokens) if rows else 0
            segment = options.flush_every if operator.needs_flush else segment
            if taken is None:
                flushed = f"those before them in a segment of {segment:,}, " if segment else ""
                chunk = f"and at most a chunk of {prepared.budget.need.chunk_rows:,}"
                return f"as many rows as {operator.name} needs to give {rows:,}, {flushed}{chunk}"
            about = "about " if rows and operator.takes_rows(rows, None) is None else about
            rows = taken + (0 if operator.needs_flush else max(operator.holds_rows(), 1))
        rows += chain.chunk_rows if link is not chain.links[0] else 0
    rows += segment + prepared.budget.need.chunk_rows
    return f"up to {about}{_some(rows, 'row')}, if operators leave none out and add none"


def _some(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"
