"""
GRPO for DI-engine. ``import_names=['ding_grpo']`` in a config registers every part: the policy ``grpo``, the model
``causal_lm``, the environment ``gymnasium_env``, the collector ``group``, the evaluator ``group`` and the learner hook
``grpo_report``. Installed packages can register more through the entry-point group ``ding_grpo.plugins``, as
``dizoo_llm`` does with ``token_env``.
"""
from importlib.metadata import entry_points

from ding_common import ConfigError, import_ding, importing

with importing():
    import_ding()

    from . import envs, model, policy, worker  # noqa: F401
    from .compat import patches

    patches.apply()
    for _plugin in entry_points(group='ding_grpo.plugins'):
        _plugin.load()
