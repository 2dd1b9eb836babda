"""The interface of DI-engine's agents (``ding.bonus``), so that ``PPOF`` and ``GRPO`` can be swapped in a script."""
import glob
import json
import os
from contextlib import ExitStack
from itertools import count
from math import isnan
from tempfile import TemporaryDirectory
from typing import Any, Dict, List, Optional, Union

import click
import numpy as np
import torch
from ding.utils.data import offline_data_save_type

from ding_common import ConfigError
from ding_grpo.data.batch import prompts_of
from ding_grpo.run.checkpoint import read_checkpoint

# Arguments of ``PPOF.train``, and their keys.
TRAIN = dict(
    collector_env_num='env.collector_env_num',
    evaluator_env_num='env.evaluator_env_num',
    n_iter_save_ckpt='policy.learn.learner.hook.save_ckpt_after_iter',
)


class DingAgent:
    """``deploy``, ``collect_data``, ``batch_evaluate`` and ``best`` of an agent of DI-engine. Their arguments have the
    names and the meaning that they have there; ``context`` and ``debug`` have no effect here. ``GRPO`` has the rest."""

    def deploy(
            self,
            enable_save_replay: bool = False,
            concatenate_all_replay: bool = False,
            replay_save_path: Optional[str] = None,
            seed: Union[int, List[int], None] = None,
            debug: bool = False,
            video: Optional[str] = None,
    ) -> 'EvalReturn':  # noqa
        """
        Overview:
            Play one greedy episode with each seed. Videos of environments of gymnasium need the extra ``video``; a \
            language model has text files in their place.
        Arguments:
            - enable_save_replay (:obj:`bool`): Whether to save a video of each episode.
            - concatenate_all_replay (:obj:`bool`): Whether to join them in ``deploy.mp4``.
            - replay_save_path (:obj:`Optional[str]`): Folder of the videos; None: ``videos`` in the run's folder.
            - seed (:obj:`Union[int, list]`): Of the episode, or those of several. None: the seed of the run.
            - video (:obj:`Optional[str]`): A file, such as ``out.mp4``, for one video of all episodes.
        Returns:
            - result (:obj:`EvalReturn`): ``eval_value`` and ``eval_value_std``, mean and standard deviation of the \
                returns.
        """
        saves, path = enable_save_replay or video is not None, replay_save_path
        with TemporaryDirectory() as made:
            folder = made if video is not None else path or os.path.join(self.main_config.exp_name, 'videos')
            seeds = [self.seed] if seed is None else [seed] if isinstance(seed, int) else seed
            folders = [os.path.join(folder, str(each)) if saves else None for each in seeds]
            keys = dict(evaluator_env_num=1, n_evaluator_episode=1)
            played = [self._evaluated(keys, *each)[0] for each in zip(seeds, folders)]
            if video is not None or saves and concatenate_all_replay:
                _join(folders, video or os.path.join(folder, 'deploy.mp4'))
        return _result([each['eval_episode_return'] for each in played])

    def batch_evaluate(
            self,
            env_num: int = 4,
            n_evaluator_episode: int = 4,
            context: Optional[str] = None,
            debug: bool = False
    ) -> 'EvalReturn':  # noqa
        """Evaluate with ``n_evaluator_episode`` episodes in ``env_num`` environments, see ``deploy`` for the result."""
        found, _ = self._evaluated(dict(evaluator_env_num=env_num, n_evaluator_episode=n_evaluator_episode))
        return _result(found['eval_episode_return'])

    def collect_data(
            self,
            env_num: Optional[int] = None,
            save_data_path: Optional[str] = None,
            n_sample: Optional[int] = None,
            n_episode: Optional[int] = None,
            context: Optional[str] = None,
            debug: bool = False
    ) -> str:
        """
        Overview:
            Collect by the policy as it is, in whole groups, until there are ``n_sample`` transitions or \
            ``n_episode`` episodes. The numbers of environments are those of the config.
        Arguments:
            - save_data_path (:obj:`Optional[str]`): None: ``demo_data`` in the run's folder.
        Returns:
            - path (:obj:`str`): Of an environment of gymnasium, ``{save_data_path}_demos.hdf5`` with the fields that \
                DI-engine's offline policies read: ``obs``, ``action``, ``reward``, ``done``, ``next_obs``. Of a \
                language model, ``{save_data_path}.jsonl``, a line for each completion.
        """
        if (n_sample is None) == (n_episode is None):
            raise ConfigError('GRPO.collect_data(): needs one of n_sample and n_episode.')
        path = save_data_path or os.path.join(self.main_config.exp_name, 'demo_data')
        os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
        found: List[Dict[str, Any]] = []
        episodes = 0
        self._build()
        with self._built() as (policy, collector):
            policy.eval_mode.load_state_dict(self.policy.eval_mode.state_dict())
            spec = collector.token_spec
            for number in count():
                for group in collector.collect(train_iter=number):
                    found += _transitions(group) if spec is None else _completions(group, spec.tokenizer)
                    episodes += len(group['length'])
                if len(found) >= (n_sample or 0) and episodes >= (n_episode or 0):
                    break
        path += '_demos.hdf5' if spec is None else '.jsonl'
        if spec is None:
            offline_data_save_type(found, path.removesuffix('_demos.hdf5'), 'hdf5')
        else:
            with open(path, 'w', encoding='utf-8') as f:
                f.writelines(json.dumps(each, ensure_ascii=False) + '\n' for each in found)
        click.echo(f'collect_data(): {len(found):,} samples of {episodes:,} episodes in {path}')
        return path

    @property
    def best(self) -> 'DingAgent':
        """This agent, with the weights of its best evaluation. ``train`` goes on from the last ones."""
        path = os.path.join(self._own_folder('best'), 'ckpt', 'ckpt_best.pth.tar')
        self._build()
        self.policy.eval_mode.load_state_dict(read_checkpoint(path))
        return self


def _result(returns: Any) -> 'EvalReturn':  # noqa
    from ding.bonus.common import EvalReturn  # with all agents of DI-engine, which takes a second
    return EvalReturn(eval_value=np.mean(returns), eval_value_std=np.std(returns))


def _transitions(group: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The steps of a group's episodes. ``done`` is False where a time limit has cut one."""
    if isinstance(group['obs'], dict):
        raise ConfigError('GRPO.collect_data(): the observations are dicts, which DI-engine does not save as HDF5.')
    found: List[Dict[str, Any]] = []
    for row, steps in enumerate(group['obs'].split(group['length'].tolist())):
        seen, last = torch.cat([steps, group['final_obs'][row:row + 1]]), len(steps) - 1
        ends = not group['truncated'][row]
        found += [
            dict(
                obs=seen[t],
                action=group['action'][row, t],
                reward=group['reward'][row, t:t + 1],
                done=ends and t == last,
                next_obs=seen[t + 1],
            ) for t in range(len(steps))
        ]
    return found


def _completions(group: Dict[str, Any], tokenizer: Any) -> List[Dict[str, Any]]:
    """Prompt, completion and reward of each row that could be scored. A part that does not apply is None."""
    found = []
    for row in (group['failed'] == 0).nonzero().flatten().tolist():
        parts = {name: values[row].item() for name, values in group['reward_parts'].items()}
        found.append(
            dict(
                prompt=tokenizer.decode(prompts_of(group)[row]),
                completion=tokenizer.decode(group['action'][row, :group['length'][row]], skip_special_tokens=True),
                reward=group['reward'][row].sum().item(),
                truncated=bool(group['truncated'][row]),
                **{name: None if isnan(value) else value
                   for name, value in parts.items()},
            )
        )
    return found


def _join(folders: List[str], path: str) -> None:
    """One video of those in some folders."""
    found = [name for folder in folders for name in sorted(glob.glob(os.path.join(glob.escape(folder), '*.mp4')))]
    if not found:
        raise ConfigError(f'GRPO.deploy(): {path} is not written; the environment makes no videos.')
    from moviepy import VideoFileClip, concatenate_videoclips
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with ExitStack() as stack:
        clips = [stack.enter_context(VideoFileClip(name)) for name in found]
        concatenate_videoclips(clips).write_videofile(path, logger=None)
