"""Recent ids → guesses. See drafting/base.py for what a drafter is."""
