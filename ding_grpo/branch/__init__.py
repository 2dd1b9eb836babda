"""
Which setting is better? ``python -m ding_grpo.branch RUN --at 40 policy.learn.learning_rate=1e-5,2e-5 --updates 20``: a
run goes on from one checkpoint with several settings, with the same problems and the same random numbers, so that their
rewards are compared group by group.
"""
