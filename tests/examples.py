"""How many examples of a property are tried, where one takes much longer than usual."""

from hypothesis import settings

assert settings.default is not None
few = settings(max_examples=settings.default.max_examples // 5)
"""For a test whose examples take half a second or more each: a fifth of what the profile says."""
