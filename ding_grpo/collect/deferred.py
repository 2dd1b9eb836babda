"""Scores that environments leave to the process that steps them, whose one scorer gets many episodes at once."""
from typing import Any, Dict, List, Optional, Protocol, Tuple

from ding.envs import BaseEnvManager, BaseEnvTimestep
from ding.envs.env_manager.base_env_manager import timeout_wrapper

from ding_common.processes.ding_private import step_timeout


class Scorer(Protocol):
    """The property ``scorer`` of an environment, None if its episodes have a reward when they end. With a scorer,
    ``reset`` takes ``defer_score``; if that is True, the info of an episode's last step contains ``unscored``."""

    def score(self, steps: List[Tuple[int, BaseEnvTimestep]]) -> List[BaseEnvTimestep]:
        """Score episodes. Arguments and result are the number of the environment and the last step of each, and these
        steps with their rewards and with all entries of their infos."""

    def close(self) -> None:
        """The run has ended. A scorer may leave this out."""


class Deferred:
    """The scorer of an env manager's reference environment, if it has one."""

    def __init__(self, manager: BaseEnvManager) -> None:
        self._scorer: Optional[Scorer] = getattr(manager.env_ref, 'scorer', None)
        # One call takes the place of many steps; it may take as long as one of them.
        self._score = self._scorer and timeout_wrapper(self._scorer.score, step_timeout(manager))

    def start(self, arguments: Optional[Dict[str, Any]] = None) -> Optional[Dict[str, Any]]:
        return arguments if self._scorer is None else dict(arguments or {}, defer_score=True)

    def is_unscored(self, step: BaseEnvTimestep) -> bool:
        return self._scorer is not None and 'unscored' in step.info

    def score(self, steps: List[Tuple[int, BaseEnvTimestep]]) -> List[BaseEnvTimestep]:
        """See ``Scorer.score``, which is not called without episodes."""
        return self._score(steps) if steps else []

    def close(self) -> None:
        if hasattr(self._scorer, 'close'):
            self._scorer.close()


class ScoringManager:
    """An env manager that scores all episodes that end in one step with one call, before it returns the step.
    DI-engine's evaluator reads the return there."""

    def __init__(self, manager: BaseEnvManager) -> None:
        self._manager = manager
        self._deferred = Deferred(manager)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def reset(self, reset_param: Optional[Dict[int, Optional[Dict[str, Any]]]] = None) -> None:
        if reset_param is None:
            reset_param = dict.fromkeys(range(self._manager.env_num))
        # the manager repeats these arguments when it resets an environment at the end of its episode
        self._manager.reset({i: self._deferred.start(arguments) for i, arguments in reset_param.items()})

    def step(self, actions: Dict[int, Any]) -> Dict[int, BaseEnvTimestep]:
        steps = self._manager.step(actions)
        unscored = [(i, step) for i, step in steps.items() if self._deferred.is_unscored(step)]
        steps.update(zip([i for i, _ in unscored], self._deferred.score(unscored)))
        return steps

    def close(self) -> None:
        self._manager.close()
        self._deferred.close()

    @classmethod
    def around(cls, manager: BaseEnvManager) -> BaseEnvManager:
        """The manager itself if its environments score their episodes."""
        return cls(manager) if getattr(manager.env_ref, 'scorer', None) is not None else manager
