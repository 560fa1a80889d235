"""The fields of one request, their checks, and options that are records."""
