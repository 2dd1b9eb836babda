"""
What mkdocs does not do by itself: a paragraph that is only a link to a file of config/ becomes this file. A site has no
files beside docs/; in a clone and on a forge the link leads there.
"""
import os
import re
from typing import Any

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
LINK = re.compile(r'^\[[^\]]+\]\((?:\.\./)+(config/\w+\.py)\)$', re.MULTILINE)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """
    Overview:
        Replace such links.
    Arguments:
        - markdown (:obj:`str`): The page as it is in docs/.
    Returns:
        - markdown (:obj:`str`): With code in place of these links.
    """

    def replace(found: re.Match) -> str:
        with open(os.path.join(ROOT, found[1]), encoding='utf-8') as f:
            return f'```python title="{found[1]}"\n{f.read()}```'

    return LINK.sub(replace, markdown)
