"""Episodes of environments of agents, by the texts of the policy."""
import time


def turn(env, text, end=True):
    return env.tokenizer.encode(text, add_special_tokens=False) + [env.tokenizer.eos_token_id] * end


def read(obs):
    return obs[obs >= 0].tolist()


def begin(envs, indices):
    """Episodes that begin at once, as in a collect; the first observation of each."""
    for env, index in zip(envs, indices):
        env.begin_reset(index)
    return [read(env.reset(options=dict(index=index))[0]) for env, index in zip(envs, indices)]


def play(env, *texts, index=0):
    """The observations before each turn, and the last step."""
    seen = [read(env.reset(options=dict(index=index))[0])]
    for text in texts:
        step = env.step(turn(env, text))
        seen.append(read(step[0]))
    return seen[:len(texts)], step


def until(holds, seconds=4.0):
    """Wait for a condition, at most so long; whether it holds then."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()
