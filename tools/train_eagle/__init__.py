"""Training of an EAGLE-3 head: `python -m tools.train_eagle FOLDER`."""
