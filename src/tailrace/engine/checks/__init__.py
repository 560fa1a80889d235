"""What watches one sequence's text and tokens: each file holds one check, a push per token."""
