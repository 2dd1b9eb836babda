"""
Environments of others, whose rows are runs of ``dizoo_llm.agents``: classes with tools in TRL's form (``classes.py``;
the instances that rows use: ``instances.py``; its reward functions: ``rewards.py``), and servers of OpenEnv.
"""
from .classes import EnvironmentTask
from .openenv import OpenEnvTask
