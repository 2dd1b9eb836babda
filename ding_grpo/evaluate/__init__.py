from .evaluator import GroupEvaluator
