"""One file per sampling method: when a request needs it, and its effect on a row. The order is in method_order.py."""
