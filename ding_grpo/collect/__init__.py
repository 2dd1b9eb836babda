from .group_collector import GroupCollector
