"""In place of vLLM's server, for a run that starts one: the same command line, served by this project's model."""
import argparse
import os
import sys
import time

if '--refuses' in sys.argv or os.environ.get('FAULT') == 'cannot begin':
    sys.exit('the model is not one that it can serve')
sys.path.insert(0, os.environ['ROOT'])

from aiohttp import web  # noqa: E402

from ding_common import import_ding  # noqa: E402

import_ding()

from ding_grpo.model import CausalLM  # noqa: E402
from tests.engine.small_vllm import SmallVllm  # noqa: E402

ROWS = 40  # after which it fails, more than those of the start

parser = argparse.ArgumentParser()
parser.add_argument('--model', required=True)
parser.add_argument('--port', required=True, type=int)
given, _ = parser.parse_known_args()
fault = os.environ.get('FAULT', '')
model = CausalLM(pretrained=given.model)
if 'another model' in fault:
    model = CausalLM(config=dict(model.lm.config.to_dict(), hidden_size=2 * model.lm.config.hidden_size))
server = SmallVllm(model, port=given.port)
faults = server.faults
begun_before = os.path.join(given.model, 'begun')
first = not os.path.exists(begun_before)
open(begun_before, 'w').close()


def ends(request, answer):
    os._exit(9)


def sleeps(request, answer):
    time.sleep(3)


def says_nan(request, answer):
    for token in answer['choices'][0]['logprobs']['content']:
        token['logprob'] = -9999.0


def says_too_many(request, answer):
    answer['choices'][0]['token_ids'].append(3)


after = [lambda *_: None] * ROWS
if fault == 'ends again and again' or fault == 'ends once' and first:
    faults.answers = [*(after if first else []), ends]
elif 'stops to answer' in fault:
    faults.answers = [*after, sleeps]
elif 'NaN' in fault:
    faults.answers = [*after, says_nan]
elif 'half of the rows' in fault:
    faults.answers = [*after, *[lambda *_: web.json_response(dict(error='out of memory'), status=500)] * 8]
elif 'rate' in fault:
    limited = dict(headers={'Retry-After': '1'}, status=429)
    faults.answers = [*after, *[lambda *_: web.json_response(dict(error='too many requests'), **limited)] * 8]
elif 'more tokens' in fault:
    faults.answers = [*after, says_too_many]
elif fault == 'keeps old weights':
    faults.loads = 3
elif 'one weight' in fault:
    faults.keeps = {'model.layers.1.mlp.up_proj.weight'}
elif 'temperature' in fault:
    faults.raw_logprobs = True
server.join()
