"""On-policy distillation on think_answer: a solved model teaches a fresh one, without the reward."""
from easydict import EasyDict

teacher = 'runs/think_answer_sft/model'  # made by: python -m dizoo_llm.sft -c think_answer_sft
think_answer_distill_config = dict(
    exp_name='runs/think_answer_distill',
    env=dict(
        collector_env_num=256,
        evaluator_env_num=4,
        n_evaluator_episode=4,
        stop_value=1.0,  # all four questions solved with greedy decoding
        task=dict(type='think_answer'),
        max_new_tokens=10,
    ),
    policy=dict(
        cuda=False,
        group_size=1,  # rows are not compared
        model=dict(
            config=dict(
                model_type='llama',
                vocab_size=32,
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
            ),
        ),
        teacher=dict(pretrained=teacher),
        learn=dict(
            batch_size=128,
            learning_rate=1e-4,
            advantage='none',  # learn from the teacher alone; the reward is only logged
            distillation=dict(divergence='reverse_kl'),
        ),
        collect=dict(n_sample=256, temperature=1.0),
        eval=dict(evaluator=dict(eval_freq=10)),
    ),
)
main_config = EasyDict(think_answer_distill_config)

think_answer_distill_create_config = dict(
    env=dict(type='token_env', import_names=['ding_grpo']),  # registers all parts of the plugin
    env_manager=dict(type='base'),
    policy=dict(type='grpo'),
    collector=dict(type='group'),
)
create_config = EasyDict(think_answer_distill_create_config)

if __name__ == '__main__':
    import sys

    from ding_grpo.__main__ import main

    main(['-m', 'serial_onpolicy', '-c', __file__, *sys.argv[1:]])
