"""
Agents: programs that ask a model through OpenAI's chat interface. ``endpoint.py`` serves the policy to them,
``body.py`` says what a request may ask and how it is answered, ``conversations.py`` finds the tokens that a request
continues, ``episode.py`` is one run of an agent, ``recorded.py`` makes its requests again without it, ``threads.py``
has its threads, and ``agent_env.py`` the environment.
"""
from .agent_env import AgentEnv
