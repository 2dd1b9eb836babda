"""
The only place that patches DI-engine or uses its private state. ``patches`` replaces parts of DI-engine, ``drop_ins``
adds modules that its GitHub main has and its release lacks, and ``private`` contains the functions through which the
workers access private state. Each patch names the defect of DI-engine 0.5.3 that it fixes; tests/compat/ checks them.
"""
