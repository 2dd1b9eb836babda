"""A dialogue whose user the environment plays, without end, and which records its reward itself."""
import itertools

import verifiers.v1 as vf

from in_process import Asks


class Silent(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Dialogues(vf.Taskset[Silent, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for i in itertools.count():
            yield Silent(vf.TaskData(prompt=f'say {i}'), self.config.task)


class PlayerConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Dialogue(vf.Env[PlayerConfig]):

    async def run(self, task, agents):
        said = []
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                said.append(segment.last_reply)
                if len(said) == 3:
                    break
                segment = await interaction.turn('more')
        interaction.trace.record_reward('different', float(len(set(said))), 0.5)


__all__ = ['Asks', 'Dialogue', 'Dialogues']
