"""Middleware for ``ding.framework``: whole groups in a task, in one process or in several that ``ditask`` starts."""
from .middleware import Weights, group_collector, group_trainer
from .workers import Workers

__all__ = ['Weights', 'Workers', 'group_collector', 'group_trainer']
