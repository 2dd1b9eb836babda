"""
An agent of the OpenAI Agents SDK (``openai-agents``): its ``Runner`` lets the model call a function that compares a
number with a secret one, until it answers. A run that earns the whole reward:

    user:       find the number
    assistant:  <tool_call>{"name":"check","arguments":{"n":2}}</tool_call>     tool:  higher
    assistant:  <tool_call>{"name":"check","arguments":{"n":3}}</tool_call>     tool:  right
    assistant:  3
"""
from typing import Any, Dict, List

import agents

HIGHEST, ANSWERS = 3, 3
agents.set_tracing_disabled(True)


@agents.function_tool
def check(context: agents.RunContextWrapper[Dict[str, Any]], n: int) -> str:
    """Compares a number with the secret one."""
    secret = context.context['secret']
    context.context['found'] |= n == secret
    return 'right' if n == secret else 'higher' if n < secret else 'lower'


FINDER = agents.Agent('finder', tools=[check])


async def run(problem: Dict[str, Any], client: Any) -> Dict[str, float]:
    """One run of the agent. ``found``: whether a call named the secret number; ``right``: whether the answer begins
    with it."""
    game = dict(secret=problem['secret'], found=False)
    model = agents.RunConfig(model=agents.OpenAIChatCompletionsModel('policy', client))
    try:
        result = await agents.Runner.run(FINDER, 'find the number', context=game, max_turns=ANSWERS, run_config=model)
        answer = result.final_output
    except agents.MaxTurnsExceeded:
        answer = ''
    return dict(found=float(game['found']), right=float(answer.split()[:1] == [str(problem['secret'])]))


def problems() -> List[Dict[str, Any]]:
    return [dict(question=f'secret {i}', secret=i) for i in range(1, HIGHEST + 1)]
