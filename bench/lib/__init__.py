"""What several areas share: the harness, a server under measurement, its client, a GPU's stopwatch, rows of logits."""
