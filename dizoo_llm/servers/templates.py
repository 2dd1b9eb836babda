"""The program that renders chat templates by ``transformers``, see ``Servers``. It does not import torch."""
import pickle
from typing import Any, List

from transformers.utils import chat_template_utils


def render(arguments: bytes) -> Any:
    return chat_template_utils.render_jinja_template(**pickle.loads(arguments))


def literal_text(template: str) -> str:
    return chat_template_utils._get_template_literal_text(template)


def variables(template: str) -> List[str]:
    return list(chat_template_utils._get_template_variables(template))
