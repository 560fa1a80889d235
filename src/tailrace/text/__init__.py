"""Token ids → text. Stream transformers with two methods, feed and flush: no I/O, no clock. Any chunking gives the same
text as one chunk."""
