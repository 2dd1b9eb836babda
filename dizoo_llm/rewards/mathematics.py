"""``math-verify`` in processes that can be killed."""
from typing import List, Sequence, Tuple, Union

from dizoo_llm.servers import MOST, Servers

SERVERS = Servers(
    'math-verify', 'mathematics', "env.task.check = 'math_verify': needs the extra: pip install '.[math]' in the clone",
    MOST
)


def same_expressions(pairs: Sequence[Tuple[str, str]]) -> List[Union[bool, Exception]]:
    """
    Overview:
        Whether ``math-verify`` considers both texts of each pair the same mathematical expression.
    Arguments:
        - pairs (:obj:`Sequence[Tuple[str, str]]`): The model's answers, and the references.
    Returns:
        - same (:obj:`List[Union[bool, Exception]]`): See ``Servers.ask``.
    Raises:
        - ImportError: If ``math-verify`` is not installed.
    """
    return SERVERS.ask([('same', answer, given) for given, answer in pairs], [given for given, _ in pairs])
