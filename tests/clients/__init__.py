"""Clients that others wrote, unchanged, against the real server. Run by make test-clients, in an environment of its
own."""
