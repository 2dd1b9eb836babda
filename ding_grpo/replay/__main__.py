from ding_common import import_ding

import_ding()

from .command import main  # noqa: E402

if __name__ == '__main__':
    main()
