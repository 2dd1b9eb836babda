"""Letters that are rearranged in steps, with one reward at the end, and demonstrations of it with mistakes."""
from .careless import CarelessTask
from .steps import RearrangeTask
