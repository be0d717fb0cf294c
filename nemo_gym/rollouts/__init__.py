"""The life of a rollout: tasks ─► plan ─► dispatch ─► outcome ─► store ─► metrics. The modules, in reading order:

tasks               the lines of a task file, and the prompt templates that turn them into conversations
plan                tasks times repeats: the rollouts to run
run                 one run from beginning to end, which uses everything below
store/              the files of a run, what is planned, and outcomes; it imports nothing of the modules around it
dispatch, outage    starts attempts, many at once; tries again; waits until an outage is over
concurrency         how many at once
attempt, agents     one attempt: a call of an agent
classify            how an attempt ended
gates               what trainers require of a completed rollout
tally, progress     what a run has achieved and spent, and how that is shown
run_metrics         the metrics of one run or several
reverify            saved rollouts, scored again
stream              rollouts for trainers, without files (see ``docs/collection.md``)
options             the parameters of all this that the shared interface does not have
"""
