"""One endpoint per file."""
