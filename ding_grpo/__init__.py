"""
GRPO for DI-engine. ``import_names=['ding_grpo']`` in a config registers every part: the policy ``grpo``, the model
``causal_lm``, the environment ``gymnasium_env``, the collector ``group``, the evaluator ``group`` and the learner hook
``grpo_report``. Installed packages can register more through the entry-point group ``ding_grpo.plugins``, as
``dizoo_llm`` does with ``token_env``. Parts are registered when DI-engine is imported, before or after this package.
``GRPO`` is a run as one Python object.
"""
from typing import Any

from .compat.registration import register_with_ding

register_with_ding()


def __getattr__(name: str) -> Any:
    if name != 'GRPO':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from ding_common import import_ding
    import_ding()  # else its import prints
    from .bonus import GRPO
    return GRPO
