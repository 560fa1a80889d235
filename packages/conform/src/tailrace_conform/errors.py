"""The one error that this package raises on purpose."""


class ConformError(Exception):
    """No server can be judged like this: a setting is wrong, or nobody at the address answers a plain request."""
