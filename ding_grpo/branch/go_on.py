"""Runs one branch, or tries whether its checkpoint fits its config."""
from typing import Any, Dict, Tuple

from easydict import EasyDict

from ding_common import CheckpointError, ConfigError
from ding_common.content import check_content, taking
from ding_grpo.check import built
from ding_grpo.entry.pipeline import checked, running
from ding_grpo.loop import run
from ding_grpo.run.parts import Limits

from .group_record import RecordingParts
from .plan import Branch

Configs = Tuple[EasyDict, EasyDict]


def try_out(branch: Branch, configs: Configs, seed: int, state: Dict[str, Any]) -> None:
    """Build the parts of a branch and load the checkpoint, so that a wrong setting ends the command before the first
    branch begins. Raises ``ConfigError``."""
    main, create = checked(configs)
    with built(main, create, seed) as (policy, collector):
        try:
            with taking('the checkpoint'):
                policy.learn_mode.load_state_dict(state)
                check_content(state['run'], dict(collector=collector.state_dict(waits=False)), 'the checkpoint')
        except (CheckpointError, ConfigError) as error:
            raise ConfigError(
                f"{' '.join(branch.settings)}: cannot be changed in a branch, which goes on with weights, optimizer "
                f'and counters of its checkpoint: {error.message}'
            ) from error


def go_on(configs: Configs, seed: int, replays: bool, end: int) -> None:
    """Run a branch until an update, from its own newest checkpoint if it has one."""
    with running(configs, seed, None, None, Limits(updates=end), replays=replays) as parts:
        run(RecordingParts(**vars(parts)))
