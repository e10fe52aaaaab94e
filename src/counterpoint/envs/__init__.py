"""Simulators: one adapter each, imported only when used, with scripted experts beside them.

- `counterpoint.envs.metaworld.instructions`: Meta-World's 50 tasks in words; needs no simulator.
- `counterpoint.envs.metaworld.env`: simulate a task, ask its scripted expert, draw it.
- `counterpoint.envs.metaworld.env`: the same as a gymnasium environment.
- `counterpoint.envs.metaworld.collect`: record experts as a LeRobot v3 data set.
- `counterpoint.envs.make`: tasks with a camera in one form: Meta-World, dm_control, LIBERO, robomimic.
- `counterpoint.envs.dmc.env`, `dmc_planner`, `dmc_collect`: dm_control, planners that know its dynamics, data.
- `counterpoint.envs.libero`, `robomimic`: adapters behind extras of their own.
- `counterpoint.envs.goal`: goal-reaching environments in one form (Fetch, mazes, your own), and data of mazes.
- `counterpoint.envs.vector`: environments side by side, in this process or in processes of their own.
- `counterpoint.envs.rendering`: fast off-screen pictures of any MuJoCo model.
"""
