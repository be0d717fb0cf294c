"""The store: the files of a run, and the only way to write them.

output          whether a path can be written to, and moving an old run aside
journal         one writer at a time, appending lines
repair          setting aside what a crash left
history         what earlier runs left: done, failed, given up
plan_file       the plan on disk, what of it is owed, and one plan out of two
manifest        what a run was asked to do
rollout_store   all of it together: begin, resume, extend, append
shards          several rollout files as one, for reading
"""
