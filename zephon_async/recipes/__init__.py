"""Pipelines as TOML files: what was called, with what. Reading, writing, and a JSON schema for editors."""

from zephon_async.recipes.load import load_recipe
from zephon_async.recipes.schema import recipe_schema
from zephon_async.recipes.write import to_recipe

__all__ = ["load_recipe", "recipe_schema", "to_recipe"]
