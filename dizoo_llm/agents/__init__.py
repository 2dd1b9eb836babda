"""
Agents: programs that ask a model through OpenAI's chat interface. ``endpoint.py`` serves the policy to them,
``body.py`` says what a request may ask and how it is answered, ``conversations.py`` finds the tokens that a request
continues, ``episode.py`` is one run of an agent, ``threads.py`` its threads, and ``agent_env.py`` the environment.
"""
from .agent_env import AgentEnv
