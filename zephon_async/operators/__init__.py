"""The steps of a pipeline: one file each. `base` says what an operator promises."""

from zephon_async.operators.accumulate import Accumulate
from zephon_async.operators.base import KINDS, Accumulator, Carrying, Columns, Operator, RecordFailed, Tally
from zephon_async.operators.check_operator import ValidationReport, check_operator, is_own, try_at_start, try_fully
from zephon_async.operators.contract import Finding, learned, what_is_wrong
from zephon_async.operators.decode_audio import DecodeAudio
from zephon_async.operators.decode_image import DecodeImage
from zephon_async.operators.decode_text import DecodeText
from zephon_async.operators.decode_video import DecodeVideo
from zephon_async.operators.dedup import Dedup
from zephon_async.operators.ensure_mixture import EnsureMixture
from zephon_async.operators.expand_chat import ExpandChat
from zephon_async.operators.expand_images import ExpandImages
from zephon_async.operators.filter import Filter
from zephon_async.operators.filter_batches import FilterBatches
from zephon_async.operators.filter_length import FilterLength
from zephon_async.operators.filter_regex import FilterRegex
from zephon_async.operators.flat_map import FlatMap
from zephon_async.operators.functions import Fingerprint, fingerprint, is_interrupt
from zephon_async.operators.map import Map
from zephon_async.operators.map_batches import MapBatches
from zephon_async.operators.map_transform import MapTransform
from zephon_async.operators.pack_flat import PackFlat
from zephon_async.operators.pack_sequences import PackSequences
from zephon_async.operators.patch_grid import PatchGrid
from zephon_async.operators.refer import Refer
from zephon_async.operators.shuffle import Shuffle, window_order
from zephon_async.operators.suspicious import look_at_source
from zephon_async.operators.tokenize import Tokenize
from zephon_async.operators.tokenize_chat import TokenizeChat
from zephon_async.operators.tokenize_completion import TokenizeCompletion
from zephon_async.operators.tokenizer_files import TOKENIZER_FILES

__all__ = [
    "KINDS",
    "TOKENIZER_FILES",
    "Accumulate",
    "Accumulator",
    "Carrying",
    "Columns",
    "DecodeAudio",
    "DecodeImage",
    "DecodeText",
    "DecodeVideo",
    "Dedup",
    "EnsureMixture",
    "ExpandChat",
    "ExpandImages",
    "Filter",
    "FilterBatches",
    "FilterLength",
    "FilterRegex",
    "Finding",
    "Fingerprint",
    "FlatMap",
    "Map",
    "MapBatches",
    "MapTransform",
    "Operator",
    "PackFlat",
    "PackSequences",
    "PatchGrid",
    "RecordFailed",
    "Refer",
    "Shuffle",
    "Tally",
    "Tokenize",
    "TokenizeChat",
    "TokenizeCompletion",
    "ValidationReport",
    "check_operator",
    "fingerprint",
    "is_interrupt",
    "is_own",
    "learned",
    "look_at_source",
    "try_at_start",
    "try_fully",
    "what_is_wrong",
    "window_order",
]
