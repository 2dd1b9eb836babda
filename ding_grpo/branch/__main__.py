from ding_common import import_ding

import_ding()
from .command import main  # noqa: E402  after DI-engine, whose messages are hidden

if __name__ == '__main__':
    main(prog_name='python -m ding_grpo.branch')
