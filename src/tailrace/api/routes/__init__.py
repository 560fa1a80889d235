"""One file per endpoint; the table that lists them is in api/app.py."""
