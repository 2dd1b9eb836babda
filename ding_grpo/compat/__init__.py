"""
The only place that changes DI-engine for good: ``patches`` replaces its pipelines, ``late`` runs what its own pipelines
have begun, ``registration`` says when. What is different only while a run is built and runs is in ``run/around.py``.
"""
