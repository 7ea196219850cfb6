"""The engine in a child process of its own: `parent` stands for it here, `child` runs it there, `messages` is what they say."""

from zephon_async.isolation.parent import IsolatedEngine

__all__ = ["IsolatedEngine"]
