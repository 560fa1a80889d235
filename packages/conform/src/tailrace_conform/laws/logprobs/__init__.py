"""Laws of logprobs, a file each, in the order in which they are tested."""

NAMES: tuple[str, ...] = ("bytes_join", "chosen_in_top", "sums", "greedy", "stream_same", "frequencies", "paths")
