"""What requests may say and what answers look like: msgspec structs, one file per endpoint."""
