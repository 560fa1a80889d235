"""Token ids → text: feed and flush, no I/O, no clock. Any chunking gives the same text as one chunk."""
