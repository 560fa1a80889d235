"""What goes over HTTP: msgspec structs, one file per endpoint. Shapes and types; ranges of sampling are params.py's."""
