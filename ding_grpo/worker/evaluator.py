import os
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
from ding.utils import SERIAL_EVALUATOR_REGISTRY
from ding.worker import InteractionSerialEvaluator

from ding_common import unwrap_task_error

from .screen import append_json, keep_off_screen, run_folder, show


@SERIAL_EVALUATOR_REGISTRY.register('group')
class GroupEvaluator(InteractionSerialEvaluator):
    """
    Overview:
        DI-engine's evaluator, which also keeps what it evaluated: one line on the screen, and one record in
        ``log/evaluator/evaluations.jsonl`` with the return, every other number that the environment reports and, for
        token environments, each problem with its completion.
    """

    def reset_policy(self, _policy: Optional[Any] = None) -> None:
        super().reset_policy(_policy)
        spec = getattr(self._env.env_ref, 'token_spec', None)
        if spec is not None and self._policy_cfg.type.startswith('grpo'):
            self._policy.get_attribute('bind')(spec)
        keep_off_screen(self._logger)

    def eval(
            self,
            save_ckpt_fn: Callable = None,
            train_iter: int = -1,
            envstep: int = -1,
            *args,
            **kwargs,
    ) -> Tuple[bool, Dict]:
        best = self._max_episode_return
        try:
            stop, info = super().eval(save_ckpt_fn, train_iter, envstep, *args, **kwargs)
        except RuntimeError as error:
            unwrap_task_error(error)
        value = float(np.mean(info['eval_episode_return']))
        means = {name[:-len('_mean')]: mean for name, mean in info.items() if name.endswith('_mean')}
        means.pop('eval_episode_return', None)
        record = dict(train_iter=train_iter, envstep=envstep, eval_episode_return=value, **means)
        if 'record' in info:
            texts = sorted(info['record'], key=lambda r: int(r[0]))
            record['completions'] = [dict(index=int(i), prompt=p, completion=c) for i, p, c in texts]
        append_json(os.path.join(run_folder(self._exp_name), 'log', self._instance_name, 'evaluations.jsonl'), record)
        parts = '  '.join(f'{name} {mean:.3f}' for name, mean in means.items())
        mark = '  (best so far)' if value > best else ''
        show(f'evaluation  update {train_iter}  return {value:.3f}{mark}  {parts}')
        return stop, info
