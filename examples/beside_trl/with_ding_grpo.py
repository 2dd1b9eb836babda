from ding_grpo import GRPO
from rewards import correct

run = GRPO('model', data='train.jsonl', eval_data='eval.jsonl', reward=correct, max_new_tokens=16, eval_freq=5, seed=0)
run.train(updates=30)
run.save('trained')
