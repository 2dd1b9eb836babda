"""Self-distillation on think_answer: a model that can read teaches itself, without the reward."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('think_answer_grpo', 'runs/think_answer_self_distill')
policy = main_config.policy
# of: python -m dizoo_llm.sft -c think_answer_reader_sft
policy.model = dict(pretrained='runs/think_answer_reader_sft/model')
policy.teacher = dict(self='start', context='reference', place='before', solution='{solution} ', closing='')
policy.group_size = 1  # rows are not compared
policy.learn = dict(batch_groups=64, learning_rate=2e-4, advantage='none')  # the reward is only logged
policy.collect.groups = 64
policy.eval.evaluator.eval_freq = 1
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
