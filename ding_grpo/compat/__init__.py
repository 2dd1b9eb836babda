"""
The only place that alters DI-engine or uses what it keeps private. ``patches`` replaces parts of it, ``private``
has the functions by which the workers reach private state. Each names the defect of DI-engine 0.5.3 that it mends, and
tests/test_compat.py checks them.
"""
