"""Groups during collection."""
from typing import Any, Dict, List, NamedTuple


class Group:
    """
    Overview:
        A running group: G environments that were reset with one seed, each of which runs one episode.
    """

    def __init__(self, number: int, seed: int, env_ids: List[int]) -> None:
        self.number = number
        self.seed = seed
        self.env_ids = env_ids
        self.restarts = 0
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        self.running = set(self.env_ids)
        self.episodes: Dict[int, List[Dict[str, Any]]] = {i: [] for i in self.env_ids}
        self.last_info: Dict[int, Dict[str, Any]] = {}


class Collected(NamedTuple):
    """
    Overview:
        A finished group: its sample, the last info of each row, and its number of environment steps.
    """
    sample: Dict[str, Any]
    infos: List[Dict[str, Any]]
    steps: int


class Share(NamedTuple):
    """
    Overview:
        The groups that one of several processes has collected, its seconds by part, and its random states.
    """
    groups: List[Collected]
    seconds: Dict[str, float]
    python_random: Any
    numpy_random: Any
