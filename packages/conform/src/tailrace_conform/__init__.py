"""Laws that any OpenAI-compatible server should keep, and a runner that judges a server by them from outside.

The package sends requests and reads answers. The package imports httpx and nothing of tailrace: a mistake of tailrace
cannot hide in its own judge.
"""

__version__ = "0.1.0"
