"""One file per sampling method: when a request wants it, and what it does to a row. The order is in
method_order.py."""
