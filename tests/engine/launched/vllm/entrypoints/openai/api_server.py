"""In place of vLLM's server, for a run that starts one: the same command line, served by this project's model."""
import argparse
import os
import sys

if '--refuses' in sys.argv:
    sys.exit('the model is not one that it can serve')
sys.path.insert(0, os.environ['ROOT'])

from ding_common import import_ding  # noqa: E402

import_ding()

from ding_grpo.model import CausalLM  # noqa: E402
from tests.engine.small_vllm import SmallVllm  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument('--model', required=True)
parser.add_argument('--port', required=True, type=int)
given, _ = parser.parse_known_args()
SmallVllm(CausalLM(pretrained=given.model), port=given.port).join()
