"""What is not there everywhere: transformers and trl, for the module that compares with them."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("transformers") and find_spec("trl") else ["test_transformers.py"]
