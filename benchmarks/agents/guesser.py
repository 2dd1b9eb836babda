"""
The game ``guess`` (``dizoo_llm/tasks/guess.py``) as an agent: a loop that asks OpenAI's interface. The secret 6:

    user:       guess
    assistant:  4            user:  higher
    assistant:  6
"""
from typing import Any, Dict, List

HIGHEST, GUESSES = 7, 3


async def run(problem: Dict[str, Any], client: Any) -> List[float]:
    """One game. The reward of each answer: 1 for the secret, which ends the game, and 0 for another."""
    messages, rewards = [dict(role='user', content='guess')], []
    while sum(rewards) == 0 and len(rewards) < GUESSES:
        reply = await client.chat.completions.create(model='policy', messages=messages)
        words = (reply.choices[0].message.content or '').split()
        guess = int(words[0]) if words and words[0].isdigit() else HIGHEST + 1
        rewards.append(float(guess == problem['secret']))
        told = 'higher' if guess < problem['secret'] else 'lower'
        messages += [reply.choices[0].message, dict(role='user', content=told)]
    return rewards


def problems() -> List[Dict[str, Any]]:
    return [dict(question=f'secret {i}', secret=i) for i in range(1, HIGHEST + 1)]
