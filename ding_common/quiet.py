import logging
import sys
import warnings


def import_ding() -> None:
    """
    Overview:
        Import DI-engine without what it, treevalue and old gym print at their import: notices about optional
        packages and about gym's end, on which a user of this plugin cannot act. Real errors pass. If DI-engine is
        imported already (the ``ding`` command does that before any plugin), there is nothing to do.
    """
    if 'ding' in sys.modules:
        return
    import gym_notices.notices  # gym prints notices[its version] to stderr when it is imported
    gym_notices.notices.notices.clear()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # record: gym puts a filter of its own before any that is set here.
        with warnings.catch_warnings(record=True):
            import ding.entry  # noqa: F401
    finally:
        logging.disable(before)
