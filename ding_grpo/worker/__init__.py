from .commander import RunCommander
from .evaluator import GroupEvaluator
from .group_collector import GroupCollector
from .report import ReportHook
