"""
Bias and variance of every loss and advantage against the true gradient of the expected reward:
``python -m ding_grpo.gradient_bench`` enumerates all completions of a small world, and writes tables and a picture.
"""
from .command import main
