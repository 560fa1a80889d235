"""The one error that this package raises on purpose."""


class ConformError(Exception):
    """No server can be judged: a setting is wrong, or no server at the address answers a plain request."""
