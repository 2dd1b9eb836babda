"""Surrogates whose objective of a token depends on the other tokens of its row, or on other rows of its group."""
