import gymnasium

from .demonstrations import Demonstrations
from .ding_token_env import DingTokenEnv
from .spec import TokenSpec
from .token_env import TokenEnv

if 'dizoo_llm/TokenEnv-v0' not in gymnasium.registry:
    gymnasium.register(id='dizoo_llm/TokenEnv-v0', entry_point='dizoo_llm.envs.token_env:TokenEnv')
