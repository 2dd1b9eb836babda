"""Faults of an engine for ``tools/faults.py``, by a small server in place of vLLM's."""
import os
import sys
from typing import Any, Dict

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
LAUNCHED = os.path.join(ROOT, 'tests', 'engine', 'launched')
WEIGHTS = 'weights'  # a small disk
# What is wrong with the server, and what must come of it: (regular expression, exit code).
ENGINES = {
    'ends once': ('engine: the server has ended, and is started again', 0),
    'ends again and again': ('rows have no answer after .* attempts', 1),
    'cannot begin': ('the engine has ended; the end of run/engine.log', 1),
    'stops to answer for three seconds': ('rows are asked for again \\(.*Timeout', 0),
    'keeps old weights': ('in update .*: it has old values of all of them', 1),
    'keeps the old values of one weight': ('it has old values of model.layers.1.mlp.up_proj.weight', 1),
    'says log-probabilities before the temperature': ('with --logprobs-mode processed_logprobs', 1),
    'says NaN': ('the logits at sampling are NaN or infinite', 1),
    'answers with half of the rows, then with an error': ('rows are asked for again \\(.*500', 0),
    'limits its rate': ('rows are asked for again \\(.*429', 0),
    'answers with more tokens than log-probabilities': ('has answered .* tokens', 1),
    'has another model': ('does not take the weights: /update_weights: 500', 1),
}


def with_engine(fault: str, **options: Any) -> Dict[str, Any]:
    """Changes of a config."""
    env = dict(PYTHONPATH=LAUNCHED, ROOT=ROOT, OMP_NUM_THREADS='1', FAULT=fault)
    engine = dict(type='vllm', launch=dict(python=sys.executable, env=env), seconds=2.0, patience=60.0, **options)
    temperature = dict(temperature=0.7) if 'temperature' in fault else {}
    return dict(policy=dict(collect=dict(engine=engine, **temperature)))
