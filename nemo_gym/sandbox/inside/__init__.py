"""The code that runs inside the isolation: the fork server, the supervisors of boxes, and the kernel's restrictions.

It uses only the standard library, and as little of it as possible, because every process of a box starts as a copy of
this interpreter.
"""
